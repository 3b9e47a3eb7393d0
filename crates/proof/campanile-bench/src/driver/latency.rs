//! Measures the time from producing a record to its completion, one record at a time on an idle
//! machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use campanile::{BoxError, lock::Clock};
use campanile_test::{KafkaServer, Message, Producer};
use tokio::sync::Notify;

use super::measurement::{Latency, Measurement};
use super::task::Task;
use super::topic::{KEY_HEADER, Topic, idempotency_key};

/// The topic of the load. Its records are those of a run.
pub(super) const TOPIC: Topic = Topic {
    name: "latency",
    partitions: 6,
    filled: 6,
    records: 1_200,
    value: size_of::<u64>(),
    batch: None,
    keyed: true,
    timed: true,
    handler_time: Duration::ZERO,
};
/// Number of warm-up records at the start of a run, which do not count.
const WARM_UP_RECORDS: usize = 200;
/// The latencies of a run's records.
pub(super) struct Latencies {
    records: usize,
    taken: Mutex<Vec<Duration>>,
    complete: Notify,
}

impl Latencies {
    pub(super) fn new(task: &Task) -> Self {
        Self { records: task.records as usize, taken: Mutex::default(), complete: Notify::new() }
    }

    /// Adds a completed record. Its payload holds the time at which it was produced.
    ///
    /// # Errors
    /// Fails if the payload holds no time.
    pub(super) fn add(&self, payload: Option<&[u8]>) -> Result<(), BoxError> {
        let nanos = payload.and_then(|payload| payload.try_into().ok()).ok_or("no time")?;
        let took = Clock::boot().now() - Duration::from_nanos(u64::from_be_bytes(nanos));
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.push(took);
        if taken.len() == self.records {
            self.complete.notify_one();
        }
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).len() >= self.records
    }

    /// Waits until all records are complete. Supports only one waiter.
    pub(super) async fn wait_until_complete(&self) {
        self.complete.notified().await;
    }

    /// # Errors
    /// Fails if too few records are complete.
    pub(super) fn measurement(&self) -> Result<Measurement, BoxError> {
        let records = (self.records - WARM_UP_RECORDS) as u64;
        Ok(Measurement { records, latency: Some(self.quantiles()?), ..Measurement::default() })
    }

    /// # Errors
    /// Fails if too few records are complete.
    pub(super) fn quantiles(&self) -> Result<Latency, BoxError> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken =
            taken.get(WARM_UP_RECORDS..self.records).ok_or("not enough records")?.to_vec();
        taken.sort_unstable();
        let at = |part: f64| taken[(taken.len() as f64 * part) as usize].as_secs_f64() * 1e6;
        Ok(Latency { p50: at(0.5), p99: at(0.99) })
    }
}

/// Produces continuously, in the parent process: both processes use the machine's clock.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), BoxError>>,
}

impl Load {
    /// Starts to produce a record each `interval`, which should be longer than a record takes.
    pub(super) fn start(kafka: &KafkaServer, interval: Duration) -> Result<Self, BoxError> {
        kafka.create_topic(TOPIC.name, TOPIC.partitions, &[])?;
        let producer = Producer::new(&kafka.bootstrap())?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let clock = Clock::boot();
            for (number, partition) in (0..).zip((0..TOPIC.partitions).cycle()) {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let produced = clock.now();
                let message = Message::to(TOPIC.name)
                    .partition(partition)
                    .key(number.to_string())
                    .header(KEY_HEADER, idempotency_key(number))
                    .payload((produced.as_nanos() as u64).to_be_bytes());
                producer.produce(message)?;
                thread::sleep(interval.saturating_sub(clock.now() - produced));
            }
            Ok(())
        });
        Ok(Self { stop, thread })
    }

    pub(super) fn stop(self) -> Result<(), BoxError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the producer has panicked")?
    }
}
