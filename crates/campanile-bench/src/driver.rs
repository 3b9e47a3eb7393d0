//! The driver with a no-op service against a bare consumer loop, on the same real topic.

use std::convert::Infallible;
use std::time::Duration;

use campanile::{BoxError, Clock, Consumer, ConsumerConfig, Record};
use campanile_test::{KafkaServer, Message};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::sync::watch;

use crate::report::{Goal, Report, Row};

const ROUNDS: usize = 5;
const RECORDS: u64 = 1_000_000;
const PARTITIONS: i32 = 6;
const TOPIC: &str = "bench";

pub(crate) fn run(report: &mut Report) -> Result<(), BoxError> {
    let kafka = KafkaServer::start()?;
    kafka.create_topic(TOPIC, PARTITIONS, &[])?;
    let payload = vec![b'x'; 100];
    let partition = |number| i32::try_from(number % PARTITIONS as u64).unwrap_or(0);
    kafka
        .producer()
        .produce_all((0..RECORDS).map(|number| {
            Message::to(TOPIC).partition(partition(number)).payload(payload.clone())
        }))?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (mut bare, mut driven) = (vec![], vec![]);
    // A round that is not counted brings the log into the page cache.
    for round in 0..=ROUNDS {
        let alone = bare_loop(&kafka, &format!("bare-{round}"))?;
        let product = runtime.block_on(driver(&kafka, format!("driver-{round}")))?;
        if round > 0 {
            bare.push(per_second(alone));
            driven.push(per_second(product));
        }
    }
    report.add(Row {
        area: "driver",
        name: "no-op service, 6 partitions, in their order",
        unit: "records/s",
        values: driven,
        against: Some(("a bare BaseConsumer loop, records/s", bare)),
        goal: Some(Goal::AtLeast(0.15)),
    });
    Ok(())
}

/// Both are timed from the first record to the last, without the join of the group before it.
fn bare_loop(kafka: &KafkaServer, group: &str) -> Result<Duration, BoxError> {
    let consumer: BaseConsumer = kafka.consumer_config(group).create()?;
    consumer.subscribe(&[TOPIC])?;
    let clock = Clock::boot();
    let (mut start, mut received, mut bytes) = (None, 0, 0);
    while received < RECORDS {
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

async fn driver(kafka: &KafkaServer, group: String) -> Result<Duration, BoxError> {
    let config = ConsumerConfig::new(kafka.bootstrap(), group).set("auto.offset.reset", "earliest");
    let clock = Clock::boot();
    let (progress, seen) = watch::channel((Duration::ZERO, Duration::ZERO));
    let mut handled = 0;
    let own_clock = clock.clone();
    let service = tower::service_fn(move |record: Record| {
        std::hint::black_box(&record);
        handled += 1;
        if handled == 1 {
            progress.send_modify(|(start, _)| *start = own_clock.now());
        } else if handled == RECORDS {
            progress.send_modify(|(_, end)| *end = own_clock.now());
        }
        std::future::ready(Ok::<_, Infallible>(()))
    });
    let mut watched = seen.clone();
    let end = async move { drop(watched.wait_for(|(_, end)| !end.is_zero()).await) };
    let summary = Consumer::new(config)?
        .subscribe([TOPIC])
        .serve(service)
        .with_graceful_shutdown(end)
        .await?;
    if summary.processed != RECORDS {
        return Err(format!("not every record was processed: {summary:?}").into());
    }
    let (start, end) = *seen.borrow();
    Ok(end - start)
}

fn per_second(took: Duration) -> f64 {
    RECORDS as f64 / took.as_secs_f64()
}
