//! The Redis store of Campanile: locks, attempts and outcomes of idempotency keys, in one server, on the
//! primary that sentinels name, or in a cluster.
//!
//! Each operation is a Lua script, atomic for its key and decided by the server's clock; a batch of
//! commands is one script call for each kind of operation. Redis 7.0 or later is needed, with
//! `maxmemory-policy noeviction`.
//!
//! ```
//! use campanile_core::{
//!     Command, FencingToken, IdempotencyKey, Namespace, Operation, Owner, Reply, Retention,
//!     StoreKey,
//! };
//! use campanile_idempotency::Store;
//! use campanile_redis::RedisStore;
//! use std::time::Duration;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = campanile_test::RedisServer::start()?; // or a server of yours
//! let store = RedisStore::connect(redis.url()).await?;
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
//! * [`RedisConfig`] → [`RedisStore::connect`] → a [`Store`](campanile_idempotency::Store);
//!   [`ConnectError`] says why not. `check`: what is wrong with a server, and how bad it is.
//! * `batch`: a batch, from commands to answers: `call` (which commands travel in one script call),
//!   `script` (the arguments of each), `reply` (what comes back).
//! * `delivery`: the way of one call, to the server that has its keys: `topology` (one server, the
//!   primary that sentinels name, or the masters of a cluster), `access` (user, TLS), `connection` (the
//!   one connection to each, and when it is replaced).
//! * `namespace`: the agreement on how a namespace's keys are spread; `key`: what an entry is called;
//!   `wait`: until replicas have what was written, if that is wanted.
//! * The scripts themselves are in the package `campanile-lua`, one file beside each file of
//!   `script`.

mod access;
mod batch;
mod bucket;
mod call;
mod check;
mod config;
mod connection;
mod delivery;
mod error;
mod failure;
mod key;
mod namespace;
mod reply;
mod script;
mod store;
mod tls;
mod topology;
mod wait;

pub use self::check::{Finding, FindingKind, Safety, Severity};
pub use self::config::RedisConfig;
pub use self::error::ConnectError;
#[doc(hidden)]
pub use self::script::Verb;
pub use self::store::RedisStore;
