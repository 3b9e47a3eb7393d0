//! Where a consumer starts, and what happens after failed commits.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use campanile_core::{BoxError, Record, error};
use campanile_kafka::{Outputs, Transactions};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as RespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tower::service_fn;

use crate::real::{blocking, logging, topic};
use crate::support::{
    Log, TIMEOUT, committed, consumer, fill, messages, mock, serve, start, until, until_committed,
};

/// Sets the committed offset of a group without members, as an operator's tools do.
async fn set_offset(config: &ClientConfig, topic: &'static str, offset: i64) {
    let config = config.clone();
    let set = move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(topic, 0, Offset::Offset(offset)).unwrap();
        // A member that has just left may still be registered.
        campanile_test::eventually(TIMEOUT, || consumer.commit(&offsets, CommitMode::Sync).ok())
    };
    blocking(set).await.expect("a group without members accepts the commit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_continues_from_an_offset_set_back_or_forward() {
    let kafka = topic("reset", 1, &[]).await;
    blocking(|| kafka.producer().produce_all(messages("reset", 1, 20)).unwrap()).await;
    let config = kafka.consumer_config("reset");
    let mut end = 20;
    for (offset, begins) in [(None, 0), (Some(5), 5), (Some(15), 15), (Some(1_000), 0)] {
        if let Some(offset) = offset {
            set_offset(&config, "reset", offset).await;
        }
        let log = Log::default();
        let serving = serve(consumer(config.clone(), "reset"), logging(&log));
        log.reaches((end - begins) as usize).await;
        // Later records are processed, too.
        blocking(|| kafka.producer().produce_all(messages("reset", 1, 5)).unwrap()).await;
        end += 5;
        until_committed(&config, "reset", &[end]).await;
        serving.stop().await.unwrap();
        assert_eq!(log.of(0), (begins..end).collect::<Vec<_>>(), "set to {offset:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_without_offset_starts_at_the_offset_reset() {
    let kafka = mock("orders", 1, 10);
    let mut config = kafka.consumer_config("latest");
    config.set("auto.offset.reset", "latest");
    let log = Log::default();
    let serving = serve(consumer(config, "orders"), logging(&log));
    // The consumer skips records until it has determined the end of the partition.
    until("the first record is handled", || {
        fill(&kafka, "orders", 1, 1);
        log.len() > 0
    })
    .await;
    serving.stop().await.unwrap();
    assert!(log.of(0)[0] >= 10, "{:?}", log.of(0));

    let mut config = kafka.consumer_config("error");
    config.set("auto.offset.reset", "error");
    let log = Log::default();
    let error = serve(consumer(config, "orders"), logging(&log)).ended().await.unwrap_err();
    assert!(error.to_string().contains("offset"), "{error}");
    assert_eq!(log.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupt_batch_ends_serving_without_a_commit_past_it() {
    let kafka = topic("corrupt", 1, &[]).await;
    let corrupt = || {
        for _ in 0..3 {
            kafka.producer().produce_all(messages("corrupt", 1, 10)).unwrap();
        }
        let path = kafka.segment("corrupt", 0);
        let bytes = fs::read(&path).unwrap();
        // A batch begins with its first offset (8 bytes) and the length of the rest (4 bytes).
        let mut at = 0;
        let last = loop {
            let (offset, length) = (&bytes[at..at + 8], &bytes[at + 8..at + 12]);
            let end = at + 12 + u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if offset == 10_i64.to_be_bytes() {
                break end - 1;
            }
            at = end;
        };
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[bytes[last] ^ 1], last as u64).unwrap();
    };
    blocking(corrupt).await;
    for reset in ["earliest", "latest"] {
        let mut config = kafka.consumer_config(reset);
        config.set("auto.offset.reset", reset);
        set_offset(&config, "corrupt", 0).await;
        let log = Log::default();
        let error = serve(consumer(config.clone(), "corrupt"), logging(&log)).ended().await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("partition 0 of `corrupt`"), "{error}");
        assert!(error.contains("CRC32C"), "{error}");
        // The records before the corrupt batch have been processed, or not yet.
        let before = log.of(0);
        assert_eq!(before, (0..before.len() as i64).collect::<Vec<_>>(), "{reset}");
        assert!(before.len() <= 10, "{reset}: {before:?}");
        let at = blocking(move || committed(&config, "corrupt", 1)).await;
        assert_eq!(at, [Some(before.len() as i64)], "{reset}");
    }

    // Continues behind the batch, as the error suggests.
    let config = kafka.consumer_config("behind");
    set_offset(&config, "corrupt", 20).await;
    let log = Log::default();
    let serving = serve(consumer(config.clone(), "corrupt"), logging(&log));
    until_committed(&config, "corrupt", &[30]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0), (20..30).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latest_offset_reset_loses_no_unfinished_record() {
    for (name, newer, transactional) in [
        ("latest.classic", false, false),
        ("latest.newer", true, false),
        ("latest.transactional", false, true),
    ] {
        let kafka = topic(name, 1, &[]).await;
        let mut config = kafka.consumer_config(name);
        config.set("auto.offset.reset", "latest");
        if newer {
            config.remove("session.timeout.ms").remove("heartbeat.interval.ms");
            config.set("group.protocol", "consumer");
        }
        let never = |log: &Log| {
            let log = log.clone();
            service_fn(move |record: Record| {
                log.push(&record);
                let later = error::retry_after("not yet", Duration::from_secs(3600));
                async { Err::<Outputs, _>(BoxError::from(later)) }
            })
        };
        let log = Log::default();
        let new_consumer = || consumer(config.clone(), name);
        let serving = match transactional {
            true => start(new_consumer().serve_transactional(never(&log), Transactions::new(name))),
            false => serve(new_consumer(), never(&log)),
        };
        let produce = || kafka.producer().produce_all(messages(name, 1, 1)).unwrap();
        let mut end = 0;
        // The consumer skips records until it has determined the end of the partition.
        until("the first record is handled", || {
            tokio::task::block_in_place(produce);
            end += 1;
            log.len() > 0
        })
        .await;
        let first = log.of(0)[0];
        let summary = serving.stop().await.unwrap();
        assert_eq!(summary.processed, 0, "{name}");
        let log = Log::default();
        let next = serve(new_consumer(), logging(&log));
        log.reaches((end - first) as usize).await;
        until_committed(&config, name, &[end]).await;
        next.stop().await.unwrap();
        assert_eq!(log.of(0), (first..end).collect::<Vec<_>>(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_commit_is_retried_while_records_continue() {
    for refusal in [
        // Overtaken by a rebalance.
        RespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
        // Busy brokers.
        RespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        RespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        // Not authorized, or not accepted.
        RespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED,
        RespErr::RD_KAFKA_RESP_ERR_INVALID_COMMIT_OFFSET_SIZE,
    ] {
        let kafka = mock("orders", 2, 10);
        let config = kafka.consumer_config("g");
        kafka.cluster().request_errors(RDKafkaApiKey::OffsetCommit, &[refusal; 3]);
        let log = Log::default();
        let serving = serve(consumer(config.clone(), "orders"), logging(&log));
        log.reaches(20).await;
        // The commit is repeated even without another record to commit.
        until_committed(&config, "orders", &[10; 2]).await;
        fill(&kafka, "orders", 2, 10);
        until_committed(&config, "orders", &[20; 2]).await;
        let summary = serving.stop().await.unwrap();
        assert_eq!((summary.processed, log.len()), (40, 40), "{refusal:?}");
    }
}

/// librdkafka repeats a commit on its own if the coordinator moves or is slow. The repeat must not
/// arrive after the next commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_commit_never_overwrites_a_later_one() {
    let kafka = mock("orders", 1, 0);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let serving = serve(consumer(config.clone(), "orders"), logging(&log));
    fill(&kafka, "orders", 1, 1);
    until_committed(&config, "orders", &[1]).await;
    for refusal in [
        RespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        RespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
    ] {
        for pause in [150, 250] {
            kafka.cluster().request_errors(RDKafkaApiKey::OffsetCommit, &[refusal; 2]);
            for _ in 0..2 {
                let next = log.len() + 1;
                fill(&kafka, "orders", 1, 1);
                log.reaches(next).await;
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            until_committed(&config, "orders", &[log.len() as i64]).await;
            // Waits for commits that are still in flight.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let (asked, all) = (config.clone(), log.len() as i64);
            let ask = move || committed(&asked, "orders", 1);
            let is = tokio::task::spawn_blocking(ask).await.unwrap();
            assert_eq!(is, [Some(all)], "{refusal:?}");
        }
    }
    serving.stop().await.unwrap();
}
