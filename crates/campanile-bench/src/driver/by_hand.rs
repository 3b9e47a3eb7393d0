//! What people write by hand: the code of tutorials, and the best that keeps the order of a partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use campanile::{BoxError, Clock};
use campanile_test::{KafkaServer, RedisServer};
use deadpool_redis::{Config, Runtime};
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::{Notify, mpsc};

use super::product::{PARTITIONS, TOPIC};
use crate::tutorial::{acquire, complete, load};

/// One record at a time: a checkout for each call, then the commit.
pub(super) async fn tutorial(
    kafka: &KafkaServer,
    redis: &RedisServer,
    group: &str,
    records: u64,
) -> Result<Duration, BoxError> {
    let pool = Config::from_url(redis.url()).create_pool(Some(Runtime::Tokio1))?;
    let sha = load(&mut pool.get().await?).await?;
    let consumer: StreamConsumer = kafka.consumer_config(group).create()?;
    consumer.subscribe(&[TOPIC])?;
    let clock = Clock::boot();
    let mut start = None;
    for _ in 0..records {
        let message = consumer.recv().await?;
        start.get_or_insert_with(|| clock.now());
        let id = id(&message)?;
        if acquire(&mut pool.get().await?, &id).await? {
            std::hint::black_box(message.payload());
            complete(&mut pool.get().await?, &sha, &id).await?;
        }
        consumer.commit_message(&message, CommitMode::Async)?;
    }
    Ok(clock.now() - start.unwrap_or_default())
}

/// A task for each partition, all over one multiplexed connection; commits five times a second.
pub(super) async fn a_task_per_partition(
    kafka: &KafkaServer,
    redis: &RedisServer,
    group: &str,
    records: u64,
) -> Result<Duration, BoxError> {
    let client = redis::Client::open(redis.url())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let sha = load(&mut connection).await?;
    let consumer: StreamConsumer = kafka.consumer_config(group).create()?;
    consumer.subscribe(&[TOPIC])?;
    let (done, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let marks: Arc<Vec<AtomicI64>> =
        Arc::new((0..PARTITIONS).map(|_| AtomicI64::new(-1)).collect());
    let mut lanes = Vec::new();
    for partition in 0..PARTITIONS {
        let (sender, mut queue) = mpsc::channel::<(String, i64)>(1_000);
        let (mut connection, sha) = (connection.clone(), sha.clone());
        let (done, ended, marks) = (done.clone(), ended.clone(), marks.clone());
        let task = tokio::spawn(async move {
            while let Some((id, offset)) = queue.recv().await {
                if acquire(&mut connection, &id).await? {
                    std::hint::black_box(&id);
                    complete(&mut connection, &sha, &id).await?;
                }
                marks[partition as usize].store(offset + 1, Ordering::Relaxed);
                if done.fetch_add(1, Ordering::Relaxed) + 1 == records {
                    ended.notify_one();
                }
            }
            Ok::<_, BoxError>(())
        });
        lanes.push((sender, task));
    }
    let clock = Clock::boot();
    let (mut start, mut committed) = (None, clock.now());
    let all = ended.notified();
    tokio::pin!(all);
    loop {
        tokio::select! {
            message = consumer.recv() => {
                let message = message?;
                let now = clock.now();
                start.get_or_insert(now);
                let lane = &lanes[message.partition() as usize].0;
                if lane.send((id(&message)?, message.offset())).await.is_err() {
                    break;
                }
                if now - committed >= Duration::from_millis(200) {
                    committed = now;
                    consumer.commit(&offsets(&marks)?, CommitMode::Async)?;
                }
            }
            () = &mut all => break,
        }
    }
    let took = clock.now() - start.unwrap_or_default();
    for (sender, task) in lanes {
        drop(sender);
        task.await??;
    }
    Ok(took)
}

fn offsets(marks: &[AtomicI64]) -> Result<TopicPartitionList, BoxError> {
    let mut list = TopicPartitionList::new();
    for (partition, mark) in (0..PARTITIONS).zip(marks) {
        let mark = mark.load(Ordering::Relaxed);
        if mark >= 0 {
            list.add_partition_offset(TOPIC, partition, Offset::Offset(mark))?;
        }
    }
    Ok(list)
}

fn id(message: &BorrowedMessage<'_>) -> Result<String, BoxError> {
    let header = message.headers().and_then(|headers| headers.iter().next());
    let value = header.and_then(|header| header.value).ok_or("a record without its id")?;
    Ok(String::from_utf8(value.to_vec())?)
}
