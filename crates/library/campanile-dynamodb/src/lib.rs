//! The DynamoDB store of Campanile, which keeps locks, attempts and outcomes of idempotency keys in a
//! table of Amazon DynamoDB.
//!
//! ```
//! use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};
//! use campanile_core::{
//!     Command, FencingToken, IdempotencyKey, Namespace, Operation, Owner, Reply, Retention,
//!     StoreKey,
//! };
//! use campanile_dynamodb::{DynamoDbConfig, DynamoDbStore, aws_sdk_dynamodb, create_table};
//! use campanile_idempotency::Store;
//! use std::time::Duration;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = campanile_test::DynamoDbServer::start()?; // or Amazon's
//! let sdk = Config::builder() // or `Config::from(&aws_config::load_from_env().await)`
//!     .behavior_version(BehaviorVersion::latest())
//!     .endpoint_url(server.url())
//!     .region(Region::new("eu-central-1"))
//!     .credentials_provider(Credentials::new("local", "local", None, None, "example"))
//!     .build();
//! let config = DynamoDbConfig::new(sdk, "campanile");
//! create_table(config.clone()).await?; // once, with credentials that may create tables
//! let store = DynamoDbStore::connect(config).await?;
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
//! # Costs
//!
//! A command is one strongly consistent read and, if it changes the entry, one conditional write:
//!
//! | | requests | read units | write units |
//! |---|---|---|---|
//! | a new record: acquire, complete | 4 | 2 | 2 |
//! | a duplicate | 1 | 1 | 0 |
//! | a renewal of a lock, after each third of its TTL | 2 | 1 | 1 |
//! | a step | 2 | 1 | 1 |
//! | a record with one failed attempt | 8 | 4 | 4 |
//!
//! The units are for items of up to 1 KB, which an entry without a reply and steps is (some 150 bytes).
//! Each further KB of a reply, of the steps or of the details costs a write unit for every write, and
//! every 4 KB a read unit. When two processes race for a key, the loser of the write pays a write unit
//! and reads again. The reply or the steps of a key must fit into an item of 400 KB. A completion with a
//! larger reply is refused and repeated, and never recorded, so leave
//! [`with_max_reply_bytes`](campanile_idempotency::IdempotencyConfig::with_max_reply_bytes) below that. Its
//! default is 4 KiB.
//!
//! # Clocks
//!
//! DynamoDB has no clock that a condition can read, so the clock of the *process* decides: whether a lock
//! has expired, when a retry is due, and when an entry expires. If the clock of one process is ahead of
//! another's by *d*, it takes a lock *d* early. A lock that is renewed has at least half of its TTL left,
//! so this only matters once its holder has stopped renewing. The holder's own deadline, which ends its
//! handler, comes a tenth of the TTL before the lock expires. Two handlers therefore do not overlap as long
//! as any two clocks differ by less than a tenth of the TTL: 3 s with the default TTL of 30 s. Otherwise,
//! the [fencing token](campanile_core::FencingToken) still rises, and the first holder's completion is
//! refused.
//!
//! Every read compares the clock with the `Date` header of DynamoDB's response, which has whole seconds.
//! If they certainly differ by more than [a limit](DynamoDbConfig::with_max_clock_difference) of 250 ms,
//! the command fails before it has written anything. A clock that passes differs by at most 1.25 s, and, if
//! it is ahead, by the time that the request took: at most half a second with the default
//! [timeout](DynamoDbConfig::with_command_timeout). (If it is behind, the time that the response took comes
//! on top, but is also in the margin, because the deadline counts from before the request.) So two clocks
//! that pass leave no overlap with the default TTL. With a shorter TTL, a higher limit or a longer timeout,
//! keep the clocks synchronized to less than a twentieth of the TTL, as the Amazon Time Sync Service does.
//!
//! This assumes that the `Date` header is created for each response. If a proxy reuses it for longer than
//! the limit, commands fail although the clocks are right: raise the limit.
//!
//! The service deletes items hours or days after they have expired. An expired entry counts as absent,
//! whether it is deleted or not.
//!
//! # Replication
//!
//! Within a region, an acknowledged write is not lost. A global table with its default, *eventual*
//! consistency replicates to other regions asynchronously, and the last writer wins. Then all processes
//! that share a namespace must use **one** region. Processes in two regions can hold the same lock, and
//! after a failover to another region, the locks and completions of the last seconds may be missing: their
//! records run again, as after a failover of Redis. A global table with *strong* consistency
//! ([MRSC](https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/V2globaltables_HowItWorks.html))
//! loses nothing, and its conditional writes are consistent between regions. It has no time to live, so
//! [`create_table`] fails for it; create it with another tool. Nothing deletes its expired items, so delete
//! them regularly: scan for items whose `expires_at` passed an hour ago, and delete each on the same
//! condition. This is not tested. Restoring a table from a backup repeats what was processed since.
//!
//! # Layout
//!
//! * [`create_table`] creates the table, once. [`DynamoDbConfig`] → [`DynamoDbStore::connect`] → a
//!   [`Store`](campanile_idempotency::Store).
//! * `table` reads and writes items, as an [`EntryStore`](campanile_idempotency::EntryStore). `clock`
//!   compares the clocks, and `error` adds advice to the SDK's errors.

mod clock;
mod config;
mod create;
mod credentials;
mod error;
mod store;
mod table;

pub use self::config::DynamoDbConfig;
pub use self::create::create_table;
pub use self::store::DynamoDbStore;
pub use aws_sdk_dynamodb;
