//! A message is written.

use bytes::Bytes;
use campanile_core::{Output, Timestamp, millis};

use crate::{Transaction, TransactionError};

/// The header by which a message is known again.
const KEY: &str = "idempotency-key";

impl Transaction {
    /// Writes a message to the outbox, as a statement of this transaction: it is published by
    /// [`Inbox::relay`](crate::Inbox::relay) if the transaction is committed, and else it never was there.
    ///
    /// ```
    /// use campanile_core::{BoxError, Output, Request};
    /// use campanile_postgres::Transaction;
    ///
    /// async fn bill(request: Request<String>) -> Result<(), BoxError> {
    ///     let tx = Transaction::of(&request)?;
    ///     tx.execute("INSERT INTO bill VALUES ($1)", &[request.body()]).await?;
    ///     tx.publish(Output::to("bills").key(request.body().clone()).payload("100")).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # The header
    /// A message may be published more than once, and its header `idempotency-key` is the same each time: the
    /// namespace, the digest of the entry's key, and the place of the message among those of its transaction.
    /// So it is the same, too, when the handler runs again, as long as that gives out the same in the same
    /// order; also when an operator has reopened its key, so that consumers then take what it gives out for what
    /// they know. A consumer takes it by `key::header("idempotency-key")`. Databases whose handlers publish to
    /// one topic need namespaces of their own.
    ///
    /// A header of that name which is there already stays, and none is added. Without a lock, where a policy
    /// lets a request through, there is no key that it could be made of, and none is added either.
    ///
    /// # Order
    /// Messages of one topic and key are published in the order in which their transactions are committed, and
    /// those of one transaction in the order of their writing. For that a transaction which has written one
    /// makes others wait that want to, for the same key, until its end: write messages last. A circle of such
    /// waits is a conflict as others, after which the handler runs again. Without a key there is no order,
    /// and no wait. Each key takes a place in the server's table of locks (`max_locks_per_transaction` times its
    /// connections): a transaction that writes for thousands of keys may fail for want of it.
    ///
    /// Without a timestamp the message has that of this call.
    ///
    /// # Errors
    /// As [`execute`](Self::execute)'s; also for what is no name of a topic, and for a NUL in the name of a
    /// header.
    pub async fn publish(&self, output: Output) -> Result<(), TransactionError> {
        const PUBLISH: &str = "SELECT campanile.publish($1, $2, $3, $4, $5, $6)";
        let Output { topic, key, payload, timestamp, mut headers, .. } = output;
        if let Some(known_by) = self.outgoing.next()
            && headers.iter().all(|(name, _)| name != KEY)
        {
            headers.push((KEY.to_owned(), Some(known_by.into())));
        }
        let (key, payload) = (key.as_deref(), payload.as_deref());
        let millis = timestamp
            .map(|(Timestamp::CreateTime(at) | Timestamp::LogAppendTime(at))| millis::of(at));
        let (names, values): (Vec<&str>, Vec<Option<&[u8]>>) = headers
            .iter()
            .map(|(name, value)| (&**name, value.as_ref().map(Bytes::as_ref)))
            .unzip();
        self.execute(PUBLISH, &[&&*topic, &key, &payload, &millis, &names, &values]).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{BoxError, Output};
    use campanile_test::PgServer;
    use futures_util::FutureExt;

    use crate::{Inbox, PgStore, Transaction, migrate};

    #[tokio::test]
    async fn the_relay_is_told_of_a_commit_that_has_written_a_message_and_of_no_other() {
        let server = PgServer::start().unwrap();
        migrate(server.url()).await.unwrap();
        let inbox = Inbox::new(&PgStore::connect(server.url()).await.unwrap()).unwrap();
        let guard = inbox.guard("bills").unwrap();
        let is_told = || inbox.written().notified().now_or_never().is_some();
        let silent = async |_| Ok::<_, BoxError>(());
        guard.run("b-1", silent).await.unwrap();
        assert!(!is_told());
        let failing = async |tx: Transaction| {
            tx.publish(Output::to("bills")).await?;
            Err::<(), BoxError>("no such account".into())
        };
        guard.run("b-2", failing).await.unwrap_err();
        assert!(!is_told());
        let publishing = async |tx: Transaction| tx.publish(Output::to("bills")).await;
        guard.run("b-3", publishing).await.unwrap();
        assert!(is_told() && !is_told());
    }
}
