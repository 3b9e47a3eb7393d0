//! The ledger: a table in Postgres.

use std::time::Duration;

use campanile::{BoxError, FencingToken};
use deadpool_postgres::{Manager, Pool, Runtime};
use tokio_postgres::NoTls;

/// An equal token is a retry of the same attempt, and writes the same row again. A smaller token is
/// a former owner of the lock, and writes nothing.
const BOOK: &str = "
    INSERT INTO booking (payment_id, account, cents, token) VALUES ($1, $2, $3, $4)
    ON CONFLICT (payment_id) DO UPDATE
    SET account = excluded.account, cents = excluded.cents, token = excluded.token
    WHERE booking.token <= excluded.token";

/// The time limit for opening a connection. Handlers have a timeout of their own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The ledger. Clones share its connections.
#[derive(Clone)]
pub(crate) struct Ledger(Pool);

impl Ledger {
    /// The largest number of connections.
    pub(crate) const CONNECTIONS: usize = 8;

    /// Connects to the database.
    ///
    /// # Errors
    /// Fails if the URL is invalid or the database does not answer.
    pub(crate) async fn connect(url: &str) -> Result<Self, BoxError> {
        let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
            .max_size(Self::CONNECTIONS)
            .create_timeout(Some(CONNECT_TIMEOUT))
            .runtime(Runtime::Tokio1)
            .build()?;
        // Ends the program at its start if the address or the password is wrong.
        drop(pool.get().await?);
        Ok(Self(pool))
    }

    /// Books a payment.
    ///
    /// # Errors
    /// Fails if the database does not answer, or if a newer owner of the payment's lock has booked
    /// the payment.
    pub(crate) async fn book(
        &self,
        id: &str,
        account: &str,
        cents: i64,
        token: FencingToken,
    ) -> Result<(), BoxError> {
        let token = i64::try_from(token.get())?;
        let connection = self.0.get().await?;
        let statement = connection.prepare_cached(BOOK).await?;
        match connection.execute(&statement, &[&id, &account, &cents, &token]).await? {
            0 => Err("a newer owner of the lock has booked this payment".into()),
            _ => Ok(()),
        }
    }
}
