//! The Redis store of Campanile. It keeps the locks, attempts and outcomes of idempotency keys in a
//! single server, on the primary behind Redis Sentinel, or in a Redis Cluster.
//!
//! Each operation is a Lua script that runs atomically for its key and uses the server's clock. A
//! batch of commands takes one script call for each kind of operation. Redis 7.0 or later is
//! required, with `maxmemory-policy noeviction`.
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
//! let redis = campanile_test::RedisServer::start()?; // or your own server
//! let store = RedisStore::connect(redis.url()).await?;
//!
//! // The lock keeper of the idempotency layer does this for each request:
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
//! * [`RedisConfig`] → [`RedisStore::connect`] → a [`Store`](campanile_idempotency::Store);
//!   [`ConnectError`] is returned if connecting fails. `check` inspects a server's configuration
//!   and rates what it finds.
//! * `batch` turns the commands of a batch into answers: `call` groups them into script calls,
//!   `script` encodes the arguments of each script, `reply` decodes what the script returns.
//! * `router` sends a call to the server that has its keys: `topology` (a single server, the
//!   primary behind sentinels, or the masters of a cluster), `connector` (user, TLS), `connection`
//!   (the one connection to each server, and its replacement).
//! * `inspect` reads entries for operators and tools, with plain commands instead of scripts.
//! * `expire` changes when entries expire, for operators, with a script of its own.
//! * `bucket_count` checks that all clients spread a namespace's keys in the same way, `key` names the
//!   entries, and `wait` optionally waits until replicas have a write.
//! * The scripts themselves are in the package `campanile-lua`, with one Lua file for each file of
//!   `script`.

mod batch;
mod bucket;
mod bucket_count;
mod call;
mod check;
mod config;
#[cfg(feature = "serde")]
mod config_file;
mod connection;
mod connector;
mod error;
mod expire;
mod failure;
mod inspect;
mod key;
mod reply;
mod router;
#[cfg(test)]
mod samples;
mod script;
#[cfg(test)]
mod simulation;
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
