//! Servers and faults for tests of idempotent Kafka consumers, Campanile's and yours.
//!
//! Every server is a child process on a loopback port with its own folder under the temporary
//! folder, and is killed when its guard is dropped. Nothing has to run beforehand, and nothing is
//! left behind. If a program is missing, starting it fails with the command that installs it.
//!
//! ```
//! use campanile_test::{Message, MockKafka, eventually};
//! use rdkafka::Message as _;
//! use rdkafka::consumer::{BaseConsumer, Consumer};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kafka = MockKafka::start(1)?; // in this process; `KafkaServer::start()?` starts a real broker
//! kafka.create_topic("orders", 3)?;
//! kafka.producer().produce(Message::to("orders").key("k-1").payload("an order"))?;
//!
//! let consumer: BaseConsumer = kafka.consumer_config("billing").create()?;
//! consumer.subscribe(&["orders"])?;
//! let poll = || consumer.poll(Duration::from_millis(100));
//! let received = eventually(Duration::from_secs(10), poll).expect("a message within 10 s")?;
//! assert_eq!(received.payload(), Some(&b"an order"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! * [`contract`]: the contract of every store, as tests for your own stores.
//! * [`faults`]: a store with lost replies and outages on demand.
//! * `history`, with the feature of that name: records what a test does, and judges whether a record was
//!   lost or a key ran twice.
//! * `source`, with the feature of that name: the contract of every source of records, as a test for your own.
//! * `torture`, with the feature of that name: stops a handler at each of its awaits, and asks your test
//!   whether its effects are right.
//! * [`TestClock`]: a clock shared by the keeper and the store, which follows tokio's paused time.
//! * [`RedisServer`], [`KafkaServer`]: real servers, which a test can kill, pause and restart with
//!   their data. A [`RedisServer`] can also be Valkey.
//! * [`RedisCluster`], [`RedisSentinel`]: several Redis servers, for failovers and slot migrations.
//! * [`PgServer`]: a real Postgres, with a database for each test.
//! * [`DynamoDbServer`]: Amazon's DynamoDB Local, in memory.
//! * [`MockKafka`]: librdkafka's mock cluster, in this process and available at once. It does not
//!   support transactions or admin calls.
//! * [`Producer`], [`Message`]: produce messages to either kind of broker.
//! * [`Authority`]: signs the certificates of servers and clients with TLS.
//! * [`Proxy`]: a TCP proxy for any of the servers that delays, cuts or swallows traffic.
//! * [`Process`]: the guard of a child process, also for your own programs that a test kills.
//! * [`eventually`]: waits for a condition, with a time limit.
//!
//! Without the default feature `servers`, only the contract, the faults, the clock, `history`, `source` and
//! `torture` are available, and librdkafka is not built.
//!
//! # Sharing a server
//!
//! Redis starts in milliseconds. Kafka takes a few seconds, so the tests of one binary should share
//! a server and use unique names for topics and groups:
//!
//! ```no_run
//! use campanile_test::KafkaServer;
//! use std::sync::LazyLock;
//!
//! static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());
//! ```
//!
//! A `static` is never dropped, so the server's folder stays under the temporary folder. On Linux
//! with `setpriv` (part of util-linux), each child process dies with its parent, even if the parent
//! is killed. Elsewhere, a server in a `static` keeps running.

#[cfg(feature = "servers")]
mod authority;
mod clock;
pub mod contract;
#[cfg(feature = "servers")]
mod dynamodb;
#[cfg(feature = "servers")]
mod error;
mod eventually;
pub mod faults;
#[cfg(feature = "history")]
pub mod history;
#[cfg(feature = "servers")]
mod kafka;
#[cfg(feature = "servers")]
mod port;
#[cfg(feature = "servers")]
mod postgres;
#[cfg(feature = "servers")]
mod process;
#[cfg(feature = "servers")]
mod program;
#[cfg(feature = "servers")]
mod proxy;
#[cfg(feature = "servers")]
mod redis;
// Not part of the API: for the tests of Campanile's own stores.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
#[cfg(feature = "source")]
pub mod source;
#[cfg(feature = "torture")]
pub mod torture;

pub use self::clock::TestClock;
pub use self::eventually::eventually;
#[cfg(feature = "servers")]
pub use self::{
    authority::Authority,
    dynamodb::DynamoDbServer,
    error::ServerError,
    kafka::{
        Acl, Delivered, KafkaAdmin, KafkaServer, KafkaServerBuilder, Message, MockKafka, Producer,
        create_topic,
    },
    port::free_port,
    postgres::{PgServer, PgServerBuilder},
    process::Process,
    proxy::Proxy,
    redis::{
        RedisCluster, RedisClusterBuilder, RedisSentinel, RedisSentinelBuilder, RedisServer,
        RedisServerBuilder,
    },
};
