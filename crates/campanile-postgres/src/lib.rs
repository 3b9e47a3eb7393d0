//! The Postgres store of Campanile: locks, attempts and outcomes of idempotency keys, in a table.
//!
//! Each operation is a function in the database, atomic for its key and decided by the database's
//! clock; a batch of commands is one call for each kind of operation. PostgreSQL 14 or later is needed.
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
//! let postgres = campanile_test::PgServer::start()?; // or a server of yours
//! campanile_postgres::migrate(postgres.url()).await?; // once, by who may make a schema
//! let store = PgStore::connect(postgres.url()).await?;
//!
//! // What the lock keeper of the idempotency layer does for each request:
//! let key = IdempotencyKey::new("payment-17").expect("not empty");
//! let answer = store
//!     .apply(Command {
//!         key: StoreKey::new(Namespace::try_from("payments")?, key),
//!         operation: Operation::Acquire {
//!             owner: Owner::new(0x0dd5_eed5).expect("not zero"),
//!             ttl: Duration::from_secs(30),
//!             max_attempts: 5,
//!             fingerprint: None,
//!             floor: FencingToken::ZERO,
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
//! * [`migrate`] makes the schema, once. [`PgConfig`] → [`PgStore::connect`] → a
//!   [`Store`](campanile_idempotency::Store); [`ConnectError`] says why not.
//! * [`Inbox`]: what a handler writes and the completion of its entry are one transaction. `outbox`: so are
//!   messages for Kafka, which [`Inbox::relay`] publishes.
//! * `batch`: a batch, from commands to answers: `call` (which commands travel in one call, and its
//!   arguments), `told` (what comes back).
//! * `connect`: the first look at a server; `hosts`: how a connection is made; `pool`: the connections,
//!   and when one is given up; `failure`: what an error of the server means.
//! * `sweep`: entries that are over are deleted, some pages at a time.
//! * The schema and its functions are in the package `campanile-sql`.

mod batch;
mod call;
mod config;
mod connect;
mod error;
mod failure;
mod hosts;
mod inbox;
mod migrate;
mod outbox;
mod pool;
mod seldom;
mod store;
mod sweep;
mod tls;
mod told;

pub use self::config::PgConfig;
pub use self::error::ConnectError;
pub use self::inbox::{
    CarryTransaction, CloneableRequest, Connection, Inbox, InboxError, InboxGuard, InboxLayer,
    InboxService, Isolation, Transaction, TransactionError,
};
pub use self::migrate::migrate;
pub use self::store::PgStore;
pub use tokio_postgres;
