//! Measures how long a consumer works, from the first handled record to the last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile::{BoxError, Consumer, ConsumerConfig, ProcessingOrder, Record, lock::Clock};
use campanile_test::KafkaServer;
use tokio::sync::watch;
use tower::Service;

/// Counts handled records.
#[derive(Clone)]
pub(super) struct RecordCounter(Arc<CounterInner>);

struct CounterInner {
    records: u64,
    handled: AtomicU64,
    clock: Clock,
    /// The times of the first and the last record.
    times: watch::Sender<(Duration, Duration)>,
}

impl RecordCounter {
    /// Counts one record.
    pub(super) fn increment(&self) {
        let CounterInner { records, handled, clock, times } = &*self.0;
        let count = handled.fetch_add(1, Ordering::Relaxed) + 1;
        if count == 1 {
            times.send_modify(|(first, _)| *first = clock.now());
        } else if count == *records {
            times.send_modify(|(_, last)| *last = clock.now());
        }
    }
}

/// Creates a consumer that starts at the beginning of this topic.
pub(super) fn new_consumer(
    kafka: &KafkaServer,
    group: String,
    topic: &str,
    order: ProcessingOrder,
) -> Result<Consumer, BoxError> {
    let config = ConsumerConfig::new(kafka.bootstrap(), group).set("auto.offset.reset", "earliest");
    Ok(Consumer::new(config)?.subscribe([topic]).with_order(order))
}

/// Serves until `records` records are counted, and shuts down gracefully.
pub(super) async fn time_serving<S>(
    consumer: Consumer,
    records: u64,
    service: impl FnOnce(RecordCounter) -> S,
) -> Result<Duration, BoxError>
where
    S: Service<Record, Error: Into<BoxError>, Future: Send + 'static> + Clone + Send + 'static,
{
    let (times, seen) = watch::channel((Duration::ZERO, Duration::ZERO));
    let (handled, clock) = (AtomicU64::new(0), Clock::boot());
    let service = service(RecordCounter(Arc::new(CounterInner { records, handled, clock, times })));
    let mut watched = seen.clone();
    let end = async move { drop(watched.wait_for(|(_, last)| !last.is_zero()).await) };
    let summary = consumer.serve(service).with_graceful_shutdown(end).await?;
    if summary.processed < records {
        return Err(format!("not every record was processed: {summary:?}").into());
    }
    let (first, last) = *seen.borrow();
    Ok(last - first)
}
