//! Servers and faults for tests of idempotent Kafka consumers, Campanile's own and yours.
//!
//! Every server is a child process on a loopback port with a folder of its own under the temporary
//! folder, and is killed when its guard is dropped; nothing has to run beforehand and nothing stays
//! behind. A program that is missing fails the start with the command that installs it.
//!
//! ```
//! use campanile_test::{Message, MockKafka, eventually};
//! use rdkafka::Message as _;
//! use rdkafka::consumer::{BaseConsumer, Consumer};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kafka = MockKafka::start(1)?; // in this process; `KafkaServer::start()?` is the real one
//! kafka.create_topic("orders", 3)?;
//! kafka.producer().produce(Message::to("orders").key("k-1").payload("an order"))?;
//!
//! let consumer: BaseConsumer = kafka.consumer_config("billing").create()?;
//! consumer.subscribe(&["orders"])?;
//! let look = || consumer.poll(Duration::from_millis(100));
//! let received = eventually(Duration::from_secs(10), look).expect("a message within 10 s")?;
//! assert_eq!(received.payload(), Some(&b"an order"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! * [`contract`]: what every store promises, as tests for stores of your own.
//! * [`faults`]: a store with lost replies and outages on demand; [`TestClock`]: one clock for the
//!   keeper and the store, which follows tokio's paused time.
//! * [`RedisServer`], [`KafkaServer`]: the real servers; kill them, pause them, start them again
//!   with their data.
//! * [`RedisCluster`], [`RedisSentinel`]: several Redis servers; fail them over, move slots.
//! * [`PgServer`]: a real Postgres, with a database for each test.
//! * [`MockKafka`]: librdkafka's mock cluster, in the process and there at once. It does no
//!   transactions and no admin calls.
//! * [`Producer`], [`Message`]: what fills a topic, the same for both.
//! * [`Proxy`]: stands before any of the servers and delays, cuts or swallows what passes.
//! * [`Process`]: the guard around a child process, also for programs of yours that a test kills.
//! * [`eventually`]: waits for a condition, with a bound.
//!
//! Without the default feature `servers` there are only the contract, the faults and the clock, and
//! no librdkafka is built.
//!
//! # Sharing a server
//!
//! Redis starts in milliseconds; Kafka takes some seconds, so tests of one binary do well to share
//! it and to give topics and groups names of their own:
//!
//! ```no_run
//! use campanile_test::KafkaServer;
//! use std::sync::LazyLock;
//!
//! static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());
//! ```
//!
//! A `static` is never dropped, so the server's folder stays under the temporary folder. On Linux,
//! where `setpriv` is installed (it is part of util-linux), each child process is asked to die with
//! this one, also when this one is killed; elsewhere a server in a `static` stays behind too.

mod clock;
pub mod contract;
#[cfg(feature = "servers")]
mod error;
mod eventually;
pub mod faults;
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

pub use self::clock::TestClock;
pub use self::eventually::eventually;
#[cfg(feature = "servers")]
pub use self::{
    error::ServerError,
    kafka::{
        Delivered, KafkaServer, KafkaServerBuilder, Message, MockKafka, Producer, create_topic,
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
