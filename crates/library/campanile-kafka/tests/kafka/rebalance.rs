//! What a rebalance drains, what it drops, and what it must not commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_kafka::{Rebalance, TopicPartition};
use campanile_test::KafkaAdmin;
use futures_util::FutureExt;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::sync::Semaphore;
use tower::{Service, service_fn};

use crate::real::{blocking, logging, topic};
use crate::support::{
    Log, Serving, TIMEOUT, committed, consumer, fill, gated, messages, mock, serve, until,
    until_committed, within,
};

/// A service that takes 10 ms per record.
pub(crate) fn slow(
    log: &Log,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let log = log.clone();
    service_fn(move |record: Record| {
        let log = log.clone();
        async move {
            // Logged first: a record that is started twice has its effect twice.
            log.push(&record);
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(())
        }
    })
}

/// Records whether a hanging handler's future was interrupted when it is dropped.
struct DropRecorder {
    record: Record,
    interrupted: Log,
}

impl Drop for DropRecorder {
    fn drop(&mut self) {
        if self.record.attempt().interrupt().is_set() {
            self.interrupted.push(&self.record);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_record_is_interrupted_and_goes_to_the_next_owner() {
    let kafka = mock("orders", 4, 10);
    let config = kafka.consumer_config("g");
    let (begun, interrupted) = (Log::default(), Log::default());
    let (b, i) = (begun.clone(), interrupted.clone());
    let hangs = service_fn(move |record: Record| {
        b.push(&record);
        let recorder = DropRecorder { record: record.clone(), interrupted: i.clone() };
        async move {
            let _recorder = recorder;
            if record.offset() == 5 {
                std::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(())
        }
    });
    let short = consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(100));
    let one = serve(short, hangs);
    begun.reaches(4 * 6).await;
    // The mock cluster may refuse a commit in the revoke.
    until_committed(&config, "orders", &[5; 4]).await;

    let second = Log::default();
    let other = serve(consumer(config.clone(), "orders"), slow(&second));
    second.reaches(2 * 5).await;
    let moved: Vec<i32> = (0..4).filter(|&p| !second.of(p).is_empty()).collect();
    assert_eq!(moved.len(), 2);
    for &partition in &moved {
        assert_eq!(second.of(partition), [5, 6, 7, 8, 9]);
        assert!(interrupted.all().contains(&(partition, 5)));
    }
    assert_eq!(interrupted.len(), 2, "the other two records are still in flight");
    other.stop().await.unwrap();
    let summary = one.stop().await.unwrap();
    assert!(summary.revoked >= 2 && summary.unfinished >= 2, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn completion_after_the_revoke_commits_nothing() {
    let kafka = mock("orders", 4, 10);
    let config = kafka.consumer_config("g");
    let (begun, ended, release) =
        (Log::default(), Log::default(), Arc::new(AtomicBool::new(false)));
    let (b, e, r) = (begun.clone(), ended.clone(), release.clone());
    let blocks = service_fn(move |record: Record| {
        b.push(&record);
        let (ended, release) = (e.clone(), r.clone());
        async move {
            // The handler blocks its thread, so its future cannot be dropped either.
            let mut waited = Duration::ZERO;
            while record.offset() == 5 && !release.load(Ordering::SeqCst) && waited < TIMEOUT {
                std::thread::sleep(Duration::from_millis(5));
                waited += Duration::from_millis(5);
            }
            ended.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let short = consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(50));
    let one = serve(short, blocks);
    begun.reaches(4 * 6).await;
    until_committed(&config, "orders", &[5; 4]).await;

    // The second consumer never finishes a record, so all commits are the first one's.
    let taken = Log::default();
    let t = taken.clone();
    let never = service_fn(move |record: Record| {
        t.push(&record);
        std::future::pending::<Result<(), BoxError>>()
    });
    let short = consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(50));
    let other = serve(short, never);
    taken.reaches(2).await;
    release.store(true, Ordering::SeqCst);
    until("all blocked handlers have ended", || {
        ended.all().iter().filter(|(_, offset)| *offset == 5).count() == 4
    })
    .await;
    let moved: Vec<i32> = taken.all().iter().map(|(partition, _)| *partition).collect();
    let expected: Vec<i64> = (0..4).map(|p| if moved.contains(&p) { 5 } else { 10 }).collect();
    until_committed(&config, "orders", &expected).await;
    other.drop().await;
    // Without the second consumer, the partitions return and are processed from the committed
    // offsets.
    until_committed(&config, "orders", &[10; 4]).await;
    one.stop().await.unwrap();
    for partition in 0..4 {
        let twice = if moved.contains(&partition) { 2 } else { 1 };
        assert_eq!(ended.of(partition).iter().filter(|&&offset| offset == 5).count(), twice);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_paused_at_its_revoke_resumes_when_reassigned() {
    let kafka = mock("orders", 4, 200);
    let config = kafka.consumer_config("g");
    let (begun, ended, gate) = (Log::default(), Log::default(), Arc::new(Semaphore::new(0)));
    let (b, e, g) = (begun.clone(), ended.clone(), gate.clone());
    let gated = service_fn(move |record: Record| {
        b.push(&record);
        let (ended, gate) = (e.clone(), g.clone());
        async move {
            gate.acquire().await?.forget();
            ended.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let small = consumer(config.clone(), "orders")
        .with_budget(20, 1 << 20)
        .with_drain_timeout(Duration::from_millis(50));
    let one = serve(small, gated);
    begun.reaches(4).await;
    // Long enough for the full budget to count as a stall, during which the partitions are paused.
    tokio::time::sleep(Duration::from_millis(500)).await;

    let second = Log::default();
    let other: Serving = serve(consumer(config.clone(), "orders"), slow(&second));
    second.reaches(10).await;
    other.stop().await.unwrap();
    gate.add_permits(4 * 200);
    until_committed(&config, "orders", &[200; 4]).await;
    one.stop().await.unwrap();
    assert_eq!(committed(&config, "orders", 4), [Some(200); 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reassigned_partition_is_consumed_under_its_new_assignment() {
    let kafka = mock("orders", 1, 20);
    let mut config = kafka.consumer_config("g");
    // With this strategy, every rebalance revokes the partition and assigns it to one of the
    // members.
    config.set("partition.assignment.strategy", "range");
    let log = Log::default();
    let one = serve(consumer(config.clone(), "orders"), slow(&log));
    log.reaches(20).await;
    let mut all = 20;
    for _ in 0..2 {
        let other = serve(consumer(config.clone(), "orders"), slow(&log));
        fill(&kafka, "orders", 1, 20);
        all += 20;
        until_committed(&config, "orders", &[all]).await;
        other.stop().await.unwrap();
        fill(&kafka, "orders", 1, 20);
        all += 20;
        until_committed(&config, "orders", &[all]).await;
    }
    one.stop().await.unwrap();
}

fn partitions(topic: &str, numbers: &[i32]) -> Vec<TopicPartition> {
    let partition = |&partition| TopicPartition { topic: topic.into(), partition };
    numbers.iter().map(partition).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoke_is_reported_after_the_drain_and_the_commit() {
    const TOPIC: &str = "revoke-reported";
    // The mock cluster may refuse a commit in the revoke.
    let kafka = topic(TOPIC, 2, &[]).await;
    blocking(|| kafka.producer().produce_all(messages(TOPIC, 2, 3)).unwrap()).await;
    let mut config = kafka.consumer_config(TOPIC);
    config.set("session.timeout.ms", "10000");
    let (begun, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let long_drain = consumer(config.clone(), TOPIC).with_drain_timeout(TIMEOUT);
    let one = serve(long_drain, gated(&begun, &permits));
    let handle = one.handle();
    let mut rebalances = handle.rebalances();
    begun.reaches(2).await;
    assert_eq!(rebalances.next().await, Some(Rebalance::Assigned(partitions(TOPIC, &[0, 1]))));

    let blocked = gated(&Log::default(), &Arc::new(Semaphore::new(0)));
    let short_drain = consumer(config.clone(), TOPIC).with_drain_timeout(Duration::ZERO);
    let other = serve(short_drain, blocked);
    until("a partition is revoked", || handle.status().partitions.len() == 1).await;
    let kept = handle.status().partitions[0].partition;
    assert_eq!(rebalances.next().now_or_never(), None, "a record is in flight");
    permits.add_permits(100);
    let revoked = within("the revoke is reported", rebalances.next()).await;
    assert_eq!(revoked, Some(Rebalance::Revoked(partitions(TOPIC, &[1 - kept]))));
    let offsets = blocking(move || committed(&config, TOPIC, 2)).await;
    assert_eq!(offsets[(1 - kept) as usize], Some(1));

    one.stop().await.unwrap();
    assert_eq!(rebalances.next().await, Some(Rebalance::Revoked(partitions(TOPIC, &[kept]))));
    assert_eq!(rebalances.next().await, None);
    other.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_assignment_is_dropped_at_once_without_a_commit() {
    let kafka = mock("orders", 1, 3);
    let config = kafka.consumer_config("g");
    let (begun, interrupted) = (Log::default(), Log::default());
    let (b, i) = (begun.clone(), interrupted.clone());
    let hangs_once = service_fn(move |record: Record| {
        let hangs = record.offset() == 1 && !b.all().contains(&(0, 1));
        b.push(&record);
        let recorder = DropRecorder { record, interrupted: i.clone() };
        async move {
            let _recorder = recorder;
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(())
        }
    });
    // The drain timeout is as long as the test's time limit.
    let long_drain = consumer(config.clone(), "orders").with_drain_timeout(TIMEOUT);
    let serving = serve(long_drain, hangs_once);
    let mut rebalances = serving.handle().rebalances();
    begun.reaches(2).await;
    let expelled = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
    kafka.cluster().request_errors(RDKafkaApiKey::Heartbeat, &[expelled]);
    until("the hanging handler is dropped", || interrupted.len() == 1).await;
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(interrupted.all(), [(0, 1)]);
    let all = [
        Rebalance::Assigned(partitions("orders", &[0])),
        Rebalance::Lost(partitions("orders", &[0])),
        Rebalance::Assigned(partitions("orders", &[0])),
        Rebalance::Revoked(partitions("orders", &[0])),
    ];
    for expected in all {
        assert_eq!(rebalances.next().await, Some(expected));
    }
    assert_eq!(rebalances.next().await, None);
    assert!(summary.revoked >= 1, "{summary:?}");
}

/// librdkafka rejoins the group when partitions are added, also while revoked ones are still drained. They then
/// have another owner, or the same one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_added_during_a_drain_lower_no_offset() {
    const TOPIC: &str = "grown";
    const PARTITIONS: i32 = 4;
    let kafka = topic(TOPIC, PARTITIONS, &[]).await;
    let mut config = kafka.consumer_config(TOPIC);
    config.set("topic.metadata.refresh.interval.ms", "200");
    blocking(|| kafka.producer().produce_all(messages(TOPIC, PARTITIONS, 5)).unwrap()).await;
    let (first, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let one = serve(consumer(config.clone(), TOPIC), gated(&first, &gate));
    let handle = one.handle();
    let mut rebalances = handle.rebalances();
    first.reaches(4).await;
    let all = partitions(TOPIC, &[0, 1, 2, 3]);
    assert_eq!(rebalances.next().await, Some(Rebalance::Assigned(all)));

    let second = Log::default();
    let other = serve(consumer(config.clone(), TOPIC), logging(&second));
    until("two partitions are revoked", || handle.status().partitions.len() == 2).await;
    let admin = KafkaAdmin::new(kafka.bootstrap());
    blocking(move || admin.add_partitions(TOPIC, PARTITIONS + 1).unwrap()).await;
    second.reaches(5).await;
    let moved = second.all()[0].0;
    let offset = || committed(&config, TOPIC, PARTITIONS)[moved as usize];
    until("the second consumer has committed", || offset() == Some(5)).await;

    let is_lost = async { while !matches!(rebalances.next().await, Some(Rebalance::Lost(_))) {} };
    within("the first consumer has lost the partitions", is_lost).await;
    gate.add_permits(1_000);
    until_committed(&config, TOPIC, &[5; PARTITIONS as usize]).await;
    let records = |log: &Log| log.of(moved);
    assert_eq!((records(&first), records(&second)), (vec![0], vec![0, 1, 2, 3, 4]));
    for consumer in [one, other] {
        consumer.stop().await.unwrap();
    }
    assert_eq!(offset(), Some(5));
}

/// The partition that is drained is assigned to the same consumer again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_that_returns_during_its_drain_is_read_on() {
    const TOPIC: &str = "returned";
    let kafka = topic(TOPIC, 2, &[]).await;
    let mut config = kafka.consumer_config(TOPIC);
    config.set("topic.metadata.refresh.interval.ms", "200");
    blocking(|| kafka.producer().produce_all(messages(TOPIC, 2, 5)).unwrap()).await;
    let (first, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let one = serve(consumer(config.clone(), TOPIC), gated(&first, &gate));
    let handle = one.handle();
    let mut rebalances = handle.rebalances();
    first.reaches(2).await;
    let other = serve(consumer(config.clone(), TOPIC), logging(&Log::default()));
    until("a partition is revoked", || handle.status().partitions.len() == 1).await;
    let admin = KafkaAdmin::new(kafka.bootstrap());
    blocking(move || admin.add_partitions(TOPIC, 3).unwrap()).await;
    let is_lost = async { while !matches!(rebalances.next().await, Some(Rebalance::Lost(_))) {} };
    within("the first consumer has lost the partition", is_lost).await;
    gate.add_permits(1_000);
    until_committed(&config, TOPIC, &[5; 2]).await;
    for consumer in [one, other] {
        consumer.stop().await.unwrap();
    }
}
