//! The Postgres store of Campanile, which keeps locks, attempts and outcomes of idempotency keys in
//! a table.
//!
//! Each operation is a database function that is atomic for its key and uses the database's clock.
//! A batch of commands is one call for each kind of operation. The store requires PostgreSQL 14 or
//! later.
//!
//! ```
//! use campanile_core::{
//!     Command, FencingToken, IdempotencyKey, Namespace, Operation, Owner, Reply, Retention,
//!     StoreKey,
//! };
//! use campanile_idempotency::Store;
//! use campanile_postgres::PgStore;
//! use std::time::Duration;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let postgres = campanile_test::PgServer::start()?; // or your own server
//! campanile_postgres::migrate(postgres.url()).await?; // once, as a user that may create schemas
//! let store = PgStore::connect(postgres.url()).await?;
//!
//! // What the lock keeper of the idempotency layer does for each request:
//! let key = IdempotencyKey::new("payment-17").expect("not empty");
//! let answer = store
//!     .apply(Command {
//!         key: StoreKey::new(Namespace::try_from("payments")?, &key),
//!         operation: Operation::Acquire {
//!             owner: Owner::new(0x0dd5_eed5).expect("not zero"),
//!             ttl: Duration::from_secs(30),
//!             max_attempts: 5,
//!             fingerprint: None,
//!             floor: FencingToken::ZERO,
//!             details: None,
//!         },
//!         retention: Retention::default(),
//!     })
//!     .await?;
//! assert!(matches!(answer.reply, Reply::Acquired { attempt: 1, .. }));
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! * [`migrate`] creates the schema, once. [`PgConfig`] → [`PgStore::connect`] → a
//!   [`Store`](campanile_idempotency::Store). [`ConnectError`] is the reason why connecting failed.
//! * [`Inbox`] commits a handler's writes and the completion of its entry in one transaction.
//!   `outbox` adds messages for Kafka to that transaction; [`Inbox::relay`] publishes them.
//! * `batch` turns the commands of a batch into answers. `call` groups commands into calls and
//!   builds the arguments; `response` reads the results.
//! * `inspect` reads entries for tools.
//! * `connect` checks a server at the start, `hosts` opens connections, `pool` holds them and
//!   discards those that are no longer usable; `sessions` counts what the server has not ended yet,
//!   `findings` judges its settings, `watch` reports changed ones, `failure` classifies its errors.
//! * `sweep` deletes expired entries, some pages of the table at a time.
//! * The schema and its functions are in the package `campanile-sql`.

mod batch;
mod call;
mod config;
mod connect;
mod error;
mod expire;
mod failure;
mod findings;
#[cfg(test)]
mod fuzz;
mod hosts;
mod inbox;
mod inspect;
mod log_limit;
mod migrate;
mod outbox;
mod pool;
mod response;
mod sessions;
#[cfg(test)]
mod simulation;
mod store;
mod sweep;
mod tls;
mod watch;
#[cfg(test)]
mod wire;

#[doc(hidden)]
pub use self::call::Schema;
pub use self::config::PgConfig;
pub use self::error::ConnectError;
pub use self::findings::{Finding, FindingKind};
pub use self::inbox::{
    CarryTransaction, CloneableRequest, Connection, Inbox, InboxError, InboxLayer, InboxRunner,
    InboxService, Transaction, TransactionError,
};
#[doc(hidden)]
pub use self::migrate::migrate_with;
pub use self::migrate::{migrate, schema_version};
pub use self::store::PgStore;
pub use tokio_postgres;
