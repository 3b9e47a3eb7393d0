//! One of six partitions has slow handlers: do the others keep their speed?

use std::convert::Infallible;
use std::time::Duration;

use campanile::{BoxError, Consumer, Order, Record};
use campanile_test::Message;
use tower::service_fn;

use super::per_second;
use super::stage::Stage;
use super::task::Threads;
use super::timed::{consumer, timed};
use crate::report::{Goal, Report, Row};

const TOPIC: &str = "one-slow";
const PARTITIONS: u64 = 6;
const RECORDS: u64 = 1_200_000;
const KEYS: u64 = 12_000;
/// Records of the other partitions.
const OTHERS: u64 = RECORDS / PARTITIONS * (PARTITIONS - 1);

const SLOW: i32 = 0;
const TAKES: Duration = Duration::from_millis(10);

pub(super) fn run(report: &mut Report, stage: &mut Stage) -> Result<(), BoxError> {
    let (kafka, runtime) = (&stage.kafka, &Threads::Two.runtime()?);
    kafka.create_topic(TOPIC, PARTITIONS as i32, &[])?;
    kafka.producer().produce_all((0..RECORDS).map(|number| {
        let partition = (number % PARTITIONS) as i32;
        let key = (number % KEYS).to_string();
        Message::to(TOPIC).partition(partition).key(key).payload(vec![b'x'; 100])
    }))?;
    let orders: [(_, fn() -> Order); 2] = [
        ("5 partitions beside one of 10 ms, by partition", Order::by_partition),
        ("5 partitions beside one of 10 ms, by key", Order::by_key),
    ];
    for (name, order) in orders {
        let (mut with, mut without) = (vec![], vec![]);
        // The first round is a warm-up and does not count.
        for round in 0..=stage.options.rounds {
            for (takes, values) in [(Duration::ZERO, &mut without), (TAKES, &mut with)] {
                let group = format!("{name}, {takes:?}, {round}");
                let consumer = consumer(kafka, group, TOPIC, order())?
                    // Shutdown does not wait for the slow partition.
                    .with_drain_timeout(Duration::ZERO);
                let took = runtime.block_on(others(consumer, takes))?;
                if round > 0 {
                    values.push(per_second(OTHERS, took));
                }
            }
        }
        report.add(Row {
            area: "driver",
            name,
            unit: "records/s",
            values: with,
            against: Some(("beside one that is as quick as they are", without)),
            goal: Some(Goal::AtLeast(0.9)),
        });
    }
    Ok(())
}

/// Measures how long the other partitions take while the handlers of one partition take `takes`
/// each.
async fn others(consumer: Consumer, takes: Duration) -> Result<Duration, BoxError> {
    timed(consumer, OTHERS, |count| {
        service_fn(move |record: Record| {
            let other = record.partition() != SLOW;
            if other {
                count.one();
            }
            async move {
                if !other && !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
                Ok::<_, Infallible>(())
            }
        })
    })
    .await
}
