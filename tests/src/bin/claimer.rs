//! A loop written by hand, which claims each payment with `SET NX`, books it, and commits its record. The
//! booking is observed. Arguments: brokers, group, topic, Redis URL, and where to stop, such as
//! `claimed p-1` or `begun p-1`. Prints `stopped` there, and waits to be killed. Ends at the end of
//! partition 0.

use std::time::Duration;

use campanile::record::Coordinates;
use campanile::store::{Found, InspectStore, State, StoreKey};
use campanile::{
    BoxError, IdempotencyConfig, IdempotencyKey, LockKeeper, Observer, RedisConfig, RedisStore,
};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

struct Claimer {
    redis: MultiplexedConnection,
    store: RedisStore,
    observer: Observer,
    stop_at: String,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Result<[String; 5], _> = arguments.try_into();
    let [brokers, group, topic, redis, stop_at] =
        arguments.map_err(|given| format!("expected five arguments, got {given:?}"))?;
    let client = redis::Client::open(redis.as_str())?;
    // A busy machine may answer late.
    let patient =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let redis_connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
    // Longer than the keeper waits for a call, for the inspections.
    let config = RedisConfig::new(redis).with_command_timeout(Duration::from_secs(10));
    let store = RedisStore::connect(config).await?;
    let keeper = LockKeeper::new(store.clone())?;
    let config = IdempotencyConfig::new("bookings").with_lock_ttl(Duration::from_secs(6));
    let observer = Observer::new(&keeper, config)?;
    let mut claimer = Claimer { redis: redis_connection, store, observer, stop_at };
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
            Some(Err(KafkaError::PartitionEOF(_))) => break,
            // The coordinator of the group is still starting. The offset is not asked for again.
            Some(Err(error))
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::NotCoordinator) =>
            {
                consumer.unassign()?;
                consumer.assign(&list)?;
                continue;
            }
            Some(message) => message?,
        };
        let payment = String::from_utf8(message.payload().unwrap_or_default().to_vec())?;
        let (partition, offset) = (message.partition(), message.offset());
        let at = Coordinates { topic: message.topic().into(), partition, offset };
        claimer.handle(&payment, at).await?;
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
    if keeper.shutdown(Duration::from_secs(10)).await.settled {
        Ok(())
    } else {
        Err("some outcomes are not recorded".into())
    }
}

impl Claimer {
    async fn handle(&mut self, payment: &str, at: Coordinates) -> Result<(), BoxError> {
        let claim = format!("claim:{payment}");
        let mut set = redis::cmd("SET");
        set.arg(claim).arg(1).arg("NX");
        let claimed: Option<String> = set.query_async(&mut self.redis).await?;
        if claimed.is_none() {
            // A duplicate, as the loop believes.
            return Ok(());
        }
        self.stop("claimed", payment).await;
        self.observer.run(payment, at, || self.book(payment)).await?;
        // The outcome is recorded beside the loop, which may be killed at the next payment.
        self.wait_for_entry(payment, State::Completed).await
    }

    async fn book(&self, payment: &str) -> Result<(), BoxError> {
        if self.stops("begun", payment) {
            self.wait_for_entry(payment, State::Processing).await?;
        }
        self.stop("begun", payment).await;
        let mut redis = self.redis.clone();
        Ok(redis::cmd("RPUSH").arg("bookings").arg(payment).query_async(&mut redis).await?)
    }

    /// Waits until the entry of the payment, which the observer writes, has this state.
    async fn wait_for_entry(&self, payment: &str, state: State) -> Result<(), BoxError> {
        let key = IdempotencyKey::new(payment.to_owned()).ok_or("the payload is empty")?;
        let key = StoreKey::new("bookings".try_into()?, &key);
        let has_state =
            |found| matches!(found, Found::Entry { entry, .. } if entry.state() == state);
        while !has_state(self.store.inspect(&key).await?.found) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn stop(&self, point: &str, payment: &str) {
        if self.stops(point, payment) {
            println!("stopped");
            std::future::pending().await
        }
    }

    fn stops(&self, point: &str, payment: &str) -> bool {
        self.stop_at == format!("{point} {payment}")
    }
}
