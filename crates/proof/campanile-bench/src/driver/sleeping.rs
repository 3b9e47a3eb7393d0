//! Slow handlers, ordered by 1 000 keys: how close the driver comes to the possible throughput with
//! 256 records in flight.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use campanile::{BoxError, ProcessingOrder, Record, lock::Clock};
use campanile_test::{KafkaServer, Message};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower::service_fn;

use super::per_second;
use super::runner::Runner;
use super::task::RuntimeKind;
use super::timing::{new_consumer, time_serving};
use crate::report::{Goal, Report, Row};

const TOPIC: &str = "1000-keys";
const PARTITIONS: u64 = 6;
const KEYS: u64 = 1_000;
const RECORDS: u64 = 300_000;
/// The driver's default.
const IN_FLIGHT: u64 = 256;

/// How long a handler sleeps, and how many records are measured.
const HANDLERS: [(&str, Duration, u64); 2] = [
    ("handlers of 1 ms, 1 000 keys, by key", Duration::from_millis(1), RECORDS),
    ("handlers of 10 ms, 1 000 keys, by key", Duration::from_millis(10), 60_000),
];

pub(super) fn run(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let (kafka, runtime) = (&runner.kafka, &RuntimeKind::TwoWorkers.build()?);
    kafka.create_topic(TOPIC, PARTITIONS as i32, &[])?;
    kafka.producer().produce_all((0..RECORDS).map(|number| {
        let key = number % KEYS;
        let partition = (key % PARTITIONS) as i32;
        Message::to(TOPIC).partition(partition).key(key.to_string()).payload(vec![b'x'; 100])
    }))?;
    for (name, handler_time, records) in HANDLERS {
        let (mut values, mut unordered, mut asleep) = (vec![], vec![], vec![]);
        // The first round is a warm-up and does not count.
        for round in 0..=runner.options.rounds {
            let group = format!("sleeping-{}-{round}", handler_time.as_millis());
            let consumer = new_consumer(kafka, group, TOPIC, ProcessingOrder::by_key())?;
            let driven = runtime.block_on(time_serving(consumer, records, |count| {
                service_fn(move |_: Record| {
                    let count = count.clone();
                    async move {
                        tokio::time::sleep(handler_time).await;
                        count.increment();
                        Ok::<_, Infallible>(())
                    }
                })
            }))?;
            let group = format!("bare-sleeping-{}-{round}", handler_time.as_millis());
            let bare = bare_loop(kafka, runtime, &group, handler_time, records)?;
            let sleep_only = runtime.block_on(sleep_only(handler_time, records));
            if round > 0 {
                values.push(per_second(records, driven));
                unordered.push(per_second(records, bare));
                asleep.push(per_second(records, sleep_only));
            }
        }
        for (reference, possible, goal) in [
            ("a bare loop and 256 tasks, no order", unordered, Some(Goal::AtLeast(0.95))),
            ("256 tasks that only sleep as long", asleep, None),
        ] {
            report.add(Row {
                area: "driver",
                name,
                unit: "records/s",
                values: values.clone(),
                reference: Some((reference, possible)),
                goal,
            });
        }
    }
    Ok(())
}

/// Measures the achievable throughput including the cost of consuming: a task per record, in any
/// order.
fn bare_loop(
    kafka: &KafkaServer,
    runtime: &Runtime,
    group: &str,
    handler_time: Duration,
    records: u64,
) -> Result<Duration, BoxError> {
    let consumer: BaseConsumer = kafka.consumer_config(group).create()?;
    consumer.subscribe(&[TOPIC])?;
    let permits = Arc::new(Semaphore::new(IN_FLIGHT as usize));
    let clock = Clock::boot();
    let (mut start, mut received) = (None, 0);
    while received < records {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let message = message?.detach();
        start.get_or_insert_with(|| clock.now());
        received += 1;
        let permit = runtime.block_on(permits.clone().acquire_owned())?;
        runtime.spawn(async move {
            tokio::time::sleep(handler_time).await;
            std::hint::black_box(&message);
            drop(permit);
        });
    }
    runtime.block_on(permits.acquire_many(IN_FLIGHT as u32))?.forget();
    Ok(clock.now() - start.unwrap_or_default())
}

/// Measures the same number of sleeps, 256 concurrently: a runtime's sleep takes longer than
/// requested.
async fn sleep_only(handler_time: Duration, records: u64) -> Duration {
    let clock = Clock::boot();
    let start = clock.now();
    let mut tasks = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        tasks.spawn(async move {
            for _ in 0..records / IN_FLIGHT {
                tokio::time::sleep(handler_time).await;
            }
        });
    }
    tasks.join_all().await;
    clock.now() - start
}
