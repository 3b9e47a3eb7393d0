//! Writing a message to the outbox.

use bytes::Bytes;
use campanile_core::{Output, Timestamp, key, millis};

use crate::{Transaction, TransactionError};

impl Transaction {
    /// Writes a message to the outbox, as a statement of this transaction. If the transaction is
    /// committed, [`Inbox::relay`](crate::Inbox::relay) publishes the message; otherwise the
    /// message is rolled back with it.
    ///
    /// ```
    /// use campanile_core::{BoxError, Output, Request};
    /// use campanile_postgres::Transaction;
    ///
    /// async fn bill(request: Request<String>) -> Result<(), BoxError> {
    ///     let tx = Transaction::from_request(&request)?;
    ///     tx.execute("INSERT INTO bill VALUES ($1)", &[request.body()]).await?;
    ///     tx.publish(Output::to("bills").key(request.body().clone()).payload("100")).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # The header
    /// A message may be published more than once, each time with the same header `idempotency-key`:
    /// the namespace, the digest of the entry's key, and the index of the message in its
    /// transaction. The header also stays the same when the handler runs again, as long as it
    /// publishes the same messages in the same order. That includes a run after an operator has
    /// reopened the key; consumers then treat its messages as duplicates. A consumer reads the
    /// header with `key::header(key::HEADER)`. If the handlers of several databases publish
    /// to the same topic, the databases need different namespaces.
    ///
    /// If the message already has a header of that name, it is kept and none is added. None is
    /// added either if a policy lets a request through without a lock, because there is no key to
    /// derive it from.
    ///
    /// A message also gets the [headers of the current trace](Output::with_current_trace), unless it
    /// has some.
    ///
    /// # Order
    /// Messages of one topic and key are published in the order in which their transactions are
    /// committed, and messages of one transaction in the order in which they are written. Therefore
    /// a transaction that has written a message makes other transactions that write for the same
    /// key wait until it ends: write messages last. A deadlock between such waits is an ordinary
    /// conflict, after which the handler runs again. Messages without a key have no order and no
    /// waits. Each key occupies a slot in the server's lock table (`max_locks_per_transaction`
    /// times its connections): a transaction that writes for thousands of keys may exhaust it and
    /// fail.
    ///
    /// A message without a timestamp gets the time of this call.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute); also fails if the topic's name is invalid or the
    /// name of a header contains a NUL.
    pub async fn publish(&self, output: Output) -> Result<(), TransactionError> {
        const PUBLISH: &str = "SELECT campanile.publish($1, $2, $3, $4, $5, $6)";
        let Output { topic, key, payload, timestamp, mut headers, .. } =
            output.with_current_trace();
        if let Some(id) = self.message_counter.next_id()
            && headers.iter().all(|(name, _)| name != key::HEADER)
        {
            headers.push((key::HEADER.to_owned(), Some(id.into())));
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
    use std::time::Duration;

    use campanile_core::{BoxError, Output};
    use campanile_test::PgServer;
    use futures_util::FutureExt;

    use crate::{Inbox, PgConfig, PgStore, Transaction, migrate};

    #[tokio::test]
    async fn relay_is_notified_only_of_commits_with_messages() {
        let server = PgServer::start().unwrap();
        // Nothing times out on a busy machine.
        let limit = Duration::from_secs(60);
        let config =
            PgConfig::new(server.url()).with_connect_timeout(limit).with_command_timeout(limit);
        migrate(config.clone()).await.unwrap();
        let inbox = Inbox::new(&PgStore::connect(config).await.unwrap()).unwrap();
        let runner = inbox.runner("bills").unwrap();
        let is_notified = || inbox.outbox_written().notified().now_or_never().is_some();
        let without_message = async |_| Ok::<_, BoxError>(());
        runner.run("b-1", without_message).await.unwrap();
        assert!(!is_notified());
        let failing = async |tx: Transaction| {
            tx.publish(Output::to("bills")).await?;
            Err::<(), BoxError>("no such account".into())
        };
        runner.run("b-2", failing).await.unwrap_err();
        assert!(!is_notified());
        let publishing = async |tx: Transaction| tx.publish(Output::to("bills")).await;
        runner.run("b-3", publishing).await.unwrap();
        assert!(is_notified() && !is_notified());
    }
}
