//! The transaction, as the handler sees it.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use campanile_core::{Guarded, Request};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use crate::outbox::Outgoing;
use crate::pool::Lease;

/// The transaction in which the inbox runs a handler: what is written through it is committed together
/// with the completion of the entry, or not at all. Clones are the same transaction.
///
/// The handler neither commits it nor rolls it back: it answers `Ok` or an error. When it has answered,
/// or was dropped, the handle can do nothing any more ([`TransactionError::Ended`]).
///
/// Savepoints are statements as any other:
///
/// ```
/// use campanile_core::BoxError;
/// use campanile_postgres::Transaction;
///
/// /// Notes the customer, unless a constraint says no.
/// async fn note(tx: &Transaction, name: &str) -> Result<(), BoxError> {
///     tx.batch_execute("SAVEPOINT customer").await?;
///     match tx.execute("INSERT INTO customer VALUES ($1)", &[&name]).await {
///         Err(error) if error.code().is_some() => {
///             tx.batch_execute("ROLLBACK TO SAVEPOINT customer").await?;
///         }
///         noted => drop(noted?),
///     }
///     Ok(())
/// }
/// ```
///
/// # Cancellation
/// A query that is dropped may have been performed. It is rolled back with the rest if the handler is
/// dropped, too.
#[derive(Clone)]
pub struct Transaction {
    lease: Weak<Lease>,
    pub(crate) outgoing: Arc<Outgoing>,
}

/// A request that carries the [`Transaction`] to the handler.
///
/// [`Request`], [`http::Request`] and [`Guarded`] are such, by their extensions. Implement it for a request
/// type of your own; wrap a foreign one in [`Guarded`] by tower's `map_request`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no room for a transaction",
    note = "`Request` and `http::Request` have room; for a type of your own: implement \
            `CarryTransaction`; for a foreign one: `.map_request(Guarded::new)` outside the layer"
)]
pub trait CarryTransaction {
    /// Puts it in, before the handler is called.
    fn set_transaction(&mut self, transaction: Transaction);

    /// What was put in.
    fn transaction(&self) -> Option<&Transaction>;
}

/// Why a statement of the handler was not performed.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransactionError {
    /// The handler that it was for has answered, or was dropped; or there is no inbox around it.
    Ended,
    /// What the database or the connection said.
    Database(Error),
}

/// The connection of a transaction that is open. The inbox does not commit as long as somebody has it.
pub struct Connection(Arc<Lease>);

impl Transaction {
    /// The transaction that the inbox has put into this request.
    ///
    /// # Errors
    /// [`TransactionError::Ended`] if there is none: no [`InboxLayer`](super::InboxLayer) is around the
    /// handler.
    pub fn of<R: CarryTransaction>(request: &R) -> Result<&Self, TransactionError> {
        request.transaction().ok_or(TransactionError::Ended)
    }

    pub(super) fn new(lease: &Arc<Lease>, outgoing: &Arc<Outgoing>) -> Self {
        Self { lease: Arc::downgrade(lease), outgoing: outgoing.clone() }
    }

    /// Performs a statement, and says how many rows it has changed.
    ///
    /// The statement is prepared once for each connection: give what varies as parameters.
    /// Parameters of other libraries' types are features of `tokio-postgres`, such as `with-uuid-1`, to be
    /// switched on among your own dependencies.
    ///
    /// # Errors
    /// What the database said; after that only `ROLLBACK TO SAVEPOINT` goes on. Hand it up (`?`), also
    /// where it is a serialization failure: the inbox looks for those itself.
    pub async fn execute(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, TransactionError> {
        let (connection, statement) = self.prepared(statement).await?;
        Ok(connection.execute(&statement, parameters).await?)
    }

    /// The rows of a query.
    ///
    /// # Errors
    /// As [`execute`](Self::execute)'s.
    pub async fn query(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, TransactionError> {
        let (connection, statement) = self.prepared(statement).await?;
        Ok(connection.query(&statement, parameters).await?)
    }

    /// The one row of a query.
    ///
    /// # Errors
    /// As [`execute`](Self::execute)'s; also if there is none, or more than one.
    pub async fn query_one(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, TransactionError> {
        let (connection, statement) = self.prepared(statement).await?;
        Ok(connection.query_one(&statement, parameters).await?)
    }

    /// The one row of a query, if there is one.
    ///
    /// # Errors
    /// As [`execute`](Self::execute)'s; also if there are more.
    pub async fn query_opt(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, TransactionError> {
        let (connection, statement) = self.prepared(statement).await?;
        Ok(connection.query_opt(&statement, parameters).await?)
    }

    /// Performs statements without parameters, separated by semicolons.
    ///
    /// # Errors
    /// As [`execute`](Self::execute)'s.
    pub async fn batch_execute(&self, statements: &str) -> Result<(), TransactionError> {
        Ok(self.connection()?.batch_execute(statements).await?)
    }

    /// The connection, for all that `tokio_postgres` can do. Let it go before the handler answers.
    ///
    /// What handlers share with others is written over `&impl GenericClient`, which this is, and a client or
    /// a `tokio_postgres::Transaction` elsewhere:
    ///
    /// ```
    /// use campanile_core::BoxError;
    /// use campanile_postgres::Transaction;
    /// use campanile_postgres::tokio_postgres::{Error, GenericClient};
    ///
    /// async fn balance(client: &impl GenericClient, account: i64) -> Result<i64, Error> {
    ///     let sql = "SELECT cents FROM account WHERE id = $1";
    ///     client.query_one(sql, &[&account]).await?.try_get(0)
    /// }
    ///
    /// async fn look(tx: &Transaction) -> Result<i64, BoxError> {
    ///     let connection = tx.connection()?;
    ///     Ok(balance(&*connection, 17).await?)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`TransactionError::Ended`].
    pub fn connection(&self) -> Result<Connection, TransactionError> {
        self.lease.upgrade().map(Connection).ok_or(TransactionError::Ended)
    }

    /// The statement, as it is known to the connection from its first time on.
    async fn prepared(&self, statement: &str) -> Result<(Connection, Statement), TransactionError> {
        let connection = self.connection()?;
        let statement = connection.0.prepare_cached(statement).await?;
        Ok((connection, statement))
    }
}

impl TransactionError {
    /// What the database said, if it was the database.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Ended => None,
            Self::Database(error) => error.code(),
        }
    }
}

impl Deref for Connection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl<B> CarryTransaction for Request<B> {
    fn set_transaction(&mut self, transaction: Transaction) {
        self.extensions_mut().insert(transaction);
    }

    fn transaction(&self) -> Option<&Transaction> {
        self.extensions().get()
    }
}

impl<B> CarryTransaction for http::Request<B> {
    fn set_transaction(&mut self, transaction: Transaction) {
        self.extensions_mut().insert(transaction);
    }

    fn transaction(&self) -> Option<&Transaction> {
        self.extensions().get()
    }
}

impl<T> CarryTransaction for Guarded<T> {
    fn set_transaction(&mut self, transaction: Transaction) {
        Self::extensions_mut(self).insert(transaction);
    }

    fn transaction(&self) -> Option<&Transaction> {
        Self::extensions(self).get()
    }
}

impl From<Error> for TransactionError {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

impl fmt::Display for TransactionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => {
                "there is no open transaction: the handler has ended, or no inbox is around it \
                 (`.layer(inbox.layer(..)?)`)"
            }
            Self::Database(_) => "a statement of the transaction failed",
        })
    }
}

impl StdError for TransactionError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Ended => None,
            Self::Database(error) => Some(error),
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("is_open", &(self.lease.strong_count() > 0)).finish()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
