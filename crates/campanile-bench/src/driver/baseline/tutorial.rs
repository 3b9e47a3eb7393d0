//! The approach of tutorials: one record at a time, a pool checkout for each call, then the commit.

use campanile::BoxError;
use deadpool_redis::{Config, Runtime};
use rdkafka::Message;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};

use super::idempotency_key;
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::Task;
use crate::tutorial::{acquire, complete, load};

pub(in crate::driver) async fn run(task: &Task) -> Result<Measurement, BoxError> {
    let pool = Config::from_url(&task.redis).create_pool(Some(Runtime::Tokio1))?;
    let sha = load(&mut pool.get().await?).await?;
    let consumer: StreamConsumer =
        task.client_config().set("enable.auto.commit", "false").create()?;
    let counters = Counters::new(task);
    consumer.subscribe(&[&task.topic])?;
    while !counters.has_ended() {
        let message = consumer.recv().await?;
        counters.record_received();
        let key = idempotency_key(&message)?;
        if acquire(&mut pool.get().await?, key).await? {
            counters.handle(key, message.partition(), message.offset())?;
            complete(&mut pool.get().await?, &sha, key).await?;
        } else {
            counters.record_duplicate();
        }
        consumer.commit_message(&message, CommitMode::Async)?;
        counters.record_finished();
    }
    counters.measurement()
}
