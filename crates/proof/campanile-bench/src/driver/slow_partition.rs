//! One of six partitions has slow handlers: do the others keep their speed?

use std::convert::Infallible;
use std::time::Duration;

use campanile::{BoxError, Consumer, ProcessingOrder, Record};
use campanile_test::Message;
use tower::service_fn;

use super::per_second;
use super::runner::Runner;
use super::task::RuntimeKind;
use super::timing::{new_consumer, time_serving};
use crate::report::{Goal, Report, Row};

const TOPIC: &str = "one-slow";
const PARTITIONS: u64 = 6;
const RECORDS: u64 = 1_200_000;
const KEYS: u64 = 12_000;
/// Records of the other partitions.
const OTHER_RECORDS: u64 = RECORDS / PARTITIONS * (PARTITIONS - 1);

const SLOW_PARTITION: i32 = 0;
const HANDLER_TIME: Duration = Duration::from_millis(10);

pub(super) fn run(report: &mut Report, runner: &mut Runner) -> Result<(), BoxError> {
    let (kafka, runtime) = (&runner.kafka, &RuntimeKind::TwoWorkers.build()?);
    kafka.create_topic(TOPIC, PARTITIONS as i32, &[])?;
    kafka.producer().produce_all((0..RECORDS).map(|number| {
        let partition = (number % PARTITIONS) as i32;
        let key = (number % KEYS).to_string();
        Message::to(TOPIC).partition(partition).key(key).payload(vec![b'x'; 100])
    }))?;
    let orders: [(_, fn() -> ProcessingOrder); 2] = [
        ("5 partitions next to one of 10 ms, by partition", ProcessingOrder::by_partition),
        ("5 partitions next to one of 10 ms, by key", ProcessingOrder::by_key),
    ];
    for (name, order) in orders {
        let (mut with, mut without) = (vec![], vec![]);
        // The first round is a warm-up and does not count.
        for round in 0..=runner.options.rounds {
            for (handler_time, values) in
                [(Duration::ZERO, &mut without), (HANDLER_TIME, &mut with)]
            {
                let group = format!("{name}, {handler_time:?}, {round}");
                let consumer = new_consumer(kafka, group, TOPIC, order())?
                    // Shutdown does not wait for the slow partition.
                    .with_drain_timeout(Duration::ZERO);
                let took = runtime.block_on(time_other_partitions(consumer, handler_time))?;
                if round > 0 {
                    values.push(per_second(OTHER_RECORDS, took));
                }
            }
        }
        report.add(Row {
            area: "driver",
            name,
            unit: "records/s",
            values: with,
            reference: Some(("next to one of the same speed", without)),
            goal: Some(Goal::AtLeast(0.9)),
        });
    }
    Ok(())
}

/// Measures how long the other partitions take while the handlers of one partition take
/// `handler_time` each.
async fn time_other_partitions(
    consumer: Consumer,
    handler_time: Duration,
) -> Result<Duration, BoxError> {
    time_serving(consumer, OTHER_RECORDS, |count| {
        service_fn(move |record: Record| {
            let other = record.partition() != SLOW_PARTITION;
            if other {
                count.increment();
            }
            async move {
                if !other && !handler_time.is_zero() {
                    tokio::time::sleep(handler_time).await;
                }
                Ok::<_, Infallible>(())
            }
        })
    })
    .await
}
