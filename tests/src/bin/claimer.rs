//! A loop written by hand, which claims each payment with `SET NX`, books it, and commits its record. It
//! is observed: an entry is acquired before the booking, and completed after it. Arguments: brokers, group,
//! topic, Redis URL, and where to stop, such as `claimed p-1` or `begun p-1`. Prints `stopped` there, and
//! waits to be killed. Ends at the end of partition 0.

use std::time::Duration;

use campanile::lock::FencingToken;
use campanile::store::{Command, Grant, Operation, Owner, Reply, Retention, Store, StoreKey};
use campanile::{BoxError, IdempotencyKey, RedisStore};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use redis::aio::MultiplexedConnection;

struct Claimer {
    redis: MultiplexedConnection,
    store: RedisStore,
    stop_at: String,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Result<[String; 5], _> = arguments.try_into();
    let [brokers, group, topic, redis, stop_at] =
        arguments.map_err(|given| format!("expected five arguments, got {given:?}"))?;
    let client = redis::Client::open(redis.as_str())?;
    let redis_connection = client.get_multiplexed_async_connection().await?;
    let store = RedisStore::connect(redis).await?;
    let mut claimer = Claimer { redis: redis_connection, store, stop_at };
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("enable.partition.eof", "true")
        .create()?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topic, 0, Offset::Stored)?;
    consumer.assign(&list)?;
    loop {
        let message = match consumer.poll(Duration::from_millis(100)) {
            None => continue,
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(()),
            Some(message) => message?,
        };
        let payment = String::from_utf8(message.payload().unwrap_or_default().to_vec())?;
        claimer.handle(&payment).await?;
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
}

impl Claimer {
    async fn handle(&mut self, payment: &str) -> Result<(), BoxError> {
        let claim = format!("claim:{payment}");
        let mut set = redis::cmd("SET");
        set.arg(claim).arg(1).arg("NX");
        let claimed: Option<String> = set.query_async(&mut self.redis).await?;
        if claimed.is_none() {
            // A duplicate, as the loop believes.
            return Ok(());
        }
        self.stop("claimed", payment).await;
        let grant = self.acquire(payment).await?;
        self.stop("begun", payment).await;
        let () =
            redis::cmd("RPUSH").arg("bookings").arg(payment).query_async(&mut self.redis).await?;
        let (attempt, fingerprint, reply, details) = (1, None, None, None);
        let complete = Operation::Complete { grant, attempt, fingerprint, reply, details };
        self.apply(payment, complete).await?;
        Ok(())
    }

    async fn acquire(&self, payment: &str) -> Result<Grant, BoxError> {
        let owner = Owner::new(u64::from(std::process::id())).ok_or("no process id")?;
        let acquire = Operation::Acquire {
            owner,
            // Expired when the next process has started.
            ttl: Duration::from_millis(1),
            max_attempts: 0,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        };
        match self.apply(payment, acquire).await? {
            Reply::Acquired { token, .. } => Ok(Grant { token, owner }),
            reply => Err(format!("{payment} is not granted: {reply:?}").into()),
        }
    }

    async fn apply(&self, payment: &str, operation: Operation) -> Result<Reply, BoxError> {
        let key = IdempotencyKey::new(payment.to_owned()).ok_or("the payload is empty")?;
        let key = StoreKey::new("bookings".try_into()?, &key);
        let command = Command { key, operation, retention: Retention::default() };
        Ok(self.store.apply(command).await?.reply)
    }

    async fn stop(&self, point: &str, payment: &str) {
        if self.stop_at == format!("{point} {payment}") {
            println!("stopped");
            std::future::pending().await
        }
    }
}
