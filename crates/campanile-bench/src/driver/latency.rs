//! From the producer to the handler, one record a millisecond, against a bare consumer loop.

use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use campanile::{BoxError, Clock, Consumer, ConsumerConfig, Record};
use campanile_test::{KafkaServer, Message, Producer};
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tower::service_fn;

use super::ROUNDS;
use crate::report::{Goal, Report, Row};

const TOPIC: &str = "latency";
const PARTITIONS: i32 = 6;
const EVERY: Duration = Duration::from_millis(1);

/// In each round, in turns: whatever else the machine does falls to both.
const TURNS: usize = 4;
const RECORDS: usize = 1_000;
/// The first of a turn are not counted.
const WARM: usize = 200;

pub(super) fn run(
    report: &mut Report,
    kafka: &KafkaServer,
    runtime: &Runtime,
) -> Result<(), BoxError> {
    kafka.create_topic(TOPIC, PARTITIONS, &[])?;
    let load = Load::start(kafka)?;
    let (mut driven, mut bare) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        let (mut of_driver, mut of_loop) = (Times::default(), Times::default());
        for turn in 0..TURNS {
            let group = |who| format!("{who}-{round}-{turn}");
            of_loop.0.extend(bare_loop(kafka, &group("loop"))?);
            of_driver.0.extend(runtime.block_on(driver(kafka, group("driver")))?);
        }
        // A round that is not counted warms all up.
        if round > 0 {
            driven.push(of_driver);
            bare.push(of_loop);
        }
    }
    load.end()?;
    for (name, part) in [("produce to handler, p50", 0.5), ("produce to handler, p99", 0.99)] {
        let of = |rounds: &mut [Times]| rounds.iter_mut().map(|times| times.at(part)).collect();
        report.add(Row {
            area: "driver",
            name,
            unit: "us",
            values: of(&mut driven),
            against: Some(("a bare BaseConsumer loop, us", of(&mut bare))),
            goal: Some(Goal::AtMost(1.2)),
        });
    }
    Ok(())
}

#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    /// That which this part of them does not exceed, in microseconds.
    fn at(&mut self, part: f64) -> f64 {
        self.0.sort_unstable();
        self.0[(self.0.len() as f64 * part) as usize].as_secs_f64() * 1e6
    }
}

/// Produces all the time. Each record says when it was produced.
struct Load {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), BoxError>>,
}

impl Load {
    fn start(kafka: &KafkaServer) -> Result<Self, BoxError> {
        let producer = Producer::new(&kafka.bootstrap())?;
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        let thread = thread::spawn(move || {
            let clock = Clock::boot();
            for partition in (0..PARTITIONS).cycle() {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let produced = clock.now();
                let payload = (produced.as_nanos() as u64).to_be_bytes();
                producer.produce(Message::to(TOPIC).partition(partition).payload(payload))?;
                thread::sleep(EVERY.saturating_sub(clock.now() - produced));
            }
            Ok(())
        });
        Ok(Self { ends, thread })
    }

    fn end(self) -> Result<(), BoxError> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the producer has panicked")?
    }
}

/// How long ago this was produced.
fn since(clock: &Clock, payload: Option<&[u8]>) -> Result<Duration, BoxError> {
    let nanos = payload.and_then(|payload| payload.try_into().ok()).ok_or("no time")?;
    Ok(clock.now() - Duration::from_nanos(u64::from_be_bytes(nanos)))
}

fn bare_loop(kafka: &KafkaServer, group: &str) -> Result<Vec<Duration>, BoxError> {
    let mut config = kafka.consumer_config(group);
    let consumer: BaseConsumer = config.set("auto.offset.reset", "latest").create()?;
    consumer.subscribe(&[TOPIC])?;
    let clock = Clock::boot();
    let mut times = Vec::with_capacity(WARM + RECORDS);
    while times.len() < WARM + RECORDS {
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            times.push(since(&clock, message?.payload())?);
        }
    }
    Ok(times.split_off(WARM))
}

async fn driver(kafka: &KafkaServer, group: String) -> Result<Vec<Duration>, BoxError> {
    let config = ConsumerConfig::new(kafka.bootstrap(), group).set("auto.offset.reset", "latest");
    let (times, all) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
    let (seen, enough, clock) = (times.clone(), all.clone(), Clock::boot());
    let service = service_fn(move |record: Record| {
        let payload = record.payload().map(|payload| &**payload);
        let taken = since(&clock, payload).map(|time| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push(time);
            if seen.len() == WARM + RECORDS {
                enough.notify_one();
            }
        });
        ready(taken)
    });
    let consumer = Consumer::new(config)?.subscribe([TOPIC]);
    let end = async move { all.notified().await };
    consumer.serve(service).with_graceful_shutdown(end).await?;
    let mut times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    times.truncate(WARM + RECORDS);
    Ok(times.split_off(WARM))
}
