//! The transaction handle of the handler.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use campanile_core::{Request, WithLock};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use crate::outbox::MessageCounter;
use crate::pool::Lease;

/// The transaction in which the inbox runs a handler. Writes through it are committed together with
/// the completion of the entry, or not at all. Clones refer to the same transaction.
///
/// The handler neither commits it nor rolls it back: it returns `Ok` or an error. Once the handler
/// has returned or was dropped, the handle no longer works ([`TransactionError::Ended`]).
///
/// Savepoints are ordinary statements:
///
/// ```
/// use campanile_core::BoxError;
/// use campanile_postgres::Transaction;
///
/// /// Inserts the customer, unless a constraint is violated.
/// async fn insert_customer(tx: &Transaction, name: &str) -> Result<(), BoxError> {
///     tx.batch_execute("SAVEPOINT customer").await?;
///     match tx.execute("INSERT INTO customer VALUES ($1)", &[&name]).await {
///         Err(error) if error.code().is_some() => {
///             tx.batch_execute("ROLLBACK TO SAVEPOINT customer").await?;
///         }
///         inserted => drop(inserted?),
///     }
///     Ok(())
/// }
/// ```
///
/// # Cancellation
/// A query that is dropped may have been performed. If the handler is dropped, too, the query is
/// rolled back with the rest.
#[derive(Clone)]
pub struct Transaction {
    lease: Weak<Lease>,
    pub(crate) message_counter: Arc<MessageCounter>,
}

/// A request that carries the [`Transaction`] to the handler.
///
/// [`Request`], [`http::Request`] and [`WithLock`] carry it in their extensions. Implement the trait
/// for your own request types; wrap a foreign type in [`WithLock`] with tower's `map_request`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no room for a transaction",
    note = "`Request` and `http::Request` have room; for your own type, implement `CarryTransaction`; for a \
            foreign type, add `.map_request(WithLock::new)` outside the layer"
)]
pub trait CarryTransaction {
    /// Sets the transaction, before the handler is called.
    fn set_transaction(&mut self, transaction: Transaction);

    /// The transaction that was set.
    fn transaction(&self) -> Option<&Transaction>;
}

/// The reason why a statement of the handler was not performed.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransactionError {
    /// The handler of this transaction has returned or was dropped, or there is no inbox around it.
    Ended,
    /// The error of the database or the connection.
    Database(Error),
}

/// The connection of an open transaction. The inbox does not commit as long as it exists.
pub struct Connection(Arc<Lease>);

impl Transaction {
    /// Finds the transaction that the inbox has set in this request.
    ///
    /// # Errors
    /// [`TransactionError::Ended`] if there is none, because no [`InboxLayer`](super::InboxLayer)
    /// is around the handler.
    pub fn from_request<R: CarryTransaction>(request: &R) -> Result<&Self, TransactionError> {
        request.transaction().ok_or(TransactionError::Ended)
    }

    pub(super) fn new(lease: &Arc<Lease>, message_counter: &Arc<MessageCounter>) -> Self {
        Self { lease: Arc::downgrade(lease), message_counter: message_counter.clone() }
    }

    /// Performs a statement and returns the number of rows that it changed.
    ///
    /// Each connection prepares the statement once, so pass variable values as parameters.
    /// Parameters with types of other libraries need features of `tokio-postgres`, such as
    /// `with-uuid-1`; enable them among your own dependencies.
    ///
    /// # Errors
    /// The error of the database. After it, the transaction accepts only `ROLLBACK TO SAVEPOINT`.
    /// Return the error (`?`), even if it is a serialization failure: the inbox handles those
    /// itself.
    pub async fn execute(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, TransactionError> {
        let (connection, statement) = self.prepare(statement).await?;
        Ok(connection.execute(&statement, parameters).await?)
    }

    /// Runs a query and returns its rows.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub async fn query(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, TransactionError> {
        let (connection, statement) = self.prepare(statement).await?;
        Ok(connection.query(&statement, parameters).await?)
    }

    /// Runs a query and returns its only row.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute); also fails if there is no row or more than one.
    pub async fn query_one(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, TransactionError> {
        let (connection, statement) = self.prepare(statement).await?;
        Ok(connection.query_one(&statement, parameters).await?)
    }

    /// Performs statements without parameters, separated by semicolons.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub async fn batch_execute(&self, statements: &str) -> Result<(), TransactionError> {
        Ok(self.connection()?.batch_execute(statements).await?)
    }

    /// Returns the connection, for everything else that `tokio_postgres` can do. Drop it before the
    /// handler returns.
    ///
    /// Write code that handlers share with others over `&impl GenericClient`. The dereferenced
    /// connection implements that trait, as do a client and a `tokio_postgres::Transaction`:
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
    /// async fn read_balance(tx: &Transaction) -> Result<i64, BoxError> {
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

    /// Prepares the statement, once for each connection.
    async fn prepare(&self, statement: &str) -> Result<(Connection, Statement), TransactionError> {
        let connection = self.connection()?;
        let statement = connection.0.prepare_cached(statement).await?;
        Ok((connection, statement))
    }
}

impl TransactionError {
    /// The SQLSTATE code, if the error is the database's.
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

impl<T> CarryTransaction for WithLock<T> {
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
                "no open transaction: the handler has returned, or it has no inbox around it \
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
