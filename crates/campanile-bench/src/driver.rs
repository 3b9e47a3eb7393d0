//! The driver with a no-op service against a bare consumer loop, on the same real topic; with handlers
//! that take their time against what is possible; and the whole product against what is written by hand.

mod by_hand;
mod latency;
mod product;
mod sleeping;
mod slow_partition;
mod timed;

use std::convert::Infallible;
use std::time::Duration;

use campanile::{BoxError, Clock, Order, Record};
use campanile_test::{KafkaServer, Message};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tower::Service;

use self::timed::Count;
use crate::report::{Goal, Report, Row};

const ROUNDS: usize = 3;

/// A topic, filled once and read by all.
struct Topic {
    name: &'static str,
    partitions: i32,
    records: u64,
    payload: usize,
    rows: [Option<&'static str>; 3],
}

/// Each key comes so many times.
const TIMES: u64 = 100;

const TOPICS: [Topic; 4] = [
    Topic {
        name: "6-partitions",
        partitions: 6,
        records: 1_000_000,
        payload: 100,
        rows: [
            Some("no-op, 6 partitions, 100 B, by partition"),
            Some("no-op, 6 partitions, 100 B, by key"),
            Some("no-op, 6 partitions, 100 B, no order"),
        ],
    },
    Topic {
        name: "6-partitions-1-kib",
        partitions: 6,
        records: 300_000,
        payload: 1024,
        rows: [
            Some("no-op, 6 partitions, 1 KiB, by partition"),
            Some("no-op, 6 partitions, 1 KiB, by key"),
            None,
        ],
    },
    Topic {
        name: "100-partitions",
        partitions: 100,
        records: 1_000_000,
        payload: 100,
        rows: [
            Some("no-op, 100 partitions, 100 B, by partition"),
            Some("no-op, 100 partitions, 100 B, by key"),
            None,
        ],
    },
    Topic {
        name: "1000-partitions",
        partitions: 1000,
        records: 1_000_000,
        payload: 100,
        rows: [
            Some("no-op, 1000 partitions, 100 B, by partition"),
            Some("no-op, 1000 partitions, 100 B, by key"),
            None,
        ],
    },
];

/// In the order of a topic's rows.
fn order(row: usize) -> (Order, Goal) {
    match row {
        0 => (Order::by_partition(), Goal::AtLeast(0.4)),
        1 => (Order::by_key(), Goal::AtLeast(0.6)),
        _ => (Order::none(), Goal::AtLeast(0.6)),
    }
}

pub(crate) fn run(report: &mut Report) -> Result<(), BoxError> {
    let kafka = KafkaServer::start()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    product::run(report, &kafka, &runtime)?;
    sleeping::run(report, &kafka, &runtime)?;
    slow_partition::run(report, &kafka, &runtime)?;
    latency::run(report, &kafka, &runtime)?;
    for topic in &TOPICS {
        let Topic { name, partitions, records, payload, rows } = *topic;
        kafka.create_topic(name, partitions, &[])?;
        let payload = vec![b'x'; payload];
        let message = |number: u64| {
            let partition = i32::try_from(number % partitions as u64).unwrap_or(0);
            let key = number % (records / TIMES);
            let key = key.to_string().into_bytes();
            Message::to(name).partition(partition).key(key).payload(payload.clone())
        };
        kafka.producer().produce_all((0..records).map(message))?;
        let (mut bare, mut driven) = (vec![], [vec![], vec![], vec![]]);
        // A round that is not counted brings the log into the page cache.
        for round in 0..=ROUNDS {
            let alone = bare_loop(&kafka, topic, &format!("bare-{name}-{round}"))?;
            for row in 0..rows.len() {
                if rows[row].is_none() {
                    continue;
                }
                let group = format!("driver-{name}-{row}-{round}");
                let consumer = timed::consumer(&kafka, group, name, order(row).0)?;
                let product = runtime.block_on(timed::timed(consumer, records, no_op))?;
                if round > 0 {
                    driven[row].push(per_second(records, product));
                }
            }
            if round > 0 {
                bare.push(per_second(records, alone));
            }
        }
        for (row, (name, values)) in rows.into_iter().zip(driven).enumerate() {
            let Some(name) = name else { continue };
            report.add(Row {
                area: "driver",
                name,
                unit: "records/s",
                values,
                against: Some(("a bare BaseConsumer loop, records/s", bare.clone())),
                goal: Some(order(row).1),
            });
        }
    }
    Ok(())
}

/// Both are timed from the first record to the last, without the join of the group before it.
fn bare_loop(kafka: &KafkaServer, topic: &Topic, group: &str) -> Result<Duration, BoxError> {
    let consumer: BaseConsumer = kafka.consumer_config(group).create()?;
    consumer.subscribe(&[topic.name])?;
    let clock = Clock::boot();
    let (mut start, mut received, mut bytes) = (None, 0, 0);
    while received < topic.records {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        bytes += message?.payload_len();
        start.get_or_insert_with(|| clock.now());
        received += 1;
    }
    std::hint::black_box(bytes);
    Ok(clock.now() - start.unwrap_or_default())
}

fn no_op(
    count: Count,
) -> impl Service<Record, Response = (), Error = Infallible, Future: Send> + Clone + Send {
    tower::service_fn(move |record: Record| {
        std::hint::black_box(&record);
        count.one();
        std::future::ready(Ok(()))
    })
}

fn per_second(records: u64, took: Duration) -> f64 {
    records as f64 / took.as_secs_f64()
}
