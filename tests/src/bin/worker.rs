//! A consumer process for tests that stop and kill it: processes records of the form
//! `{"id":"…","work_ms":3,"failures":0}` and records its history. Arguments: brokers, group, topic,
//! URL of the store, folder of the history, then options: `order=partition`, `key` or `none`,
//! `lock_ms=5000`, `drain_ms=10000`, `release=0.1` for a process of that release,
//! `dead_letters=TOPIC`, `retries=TOPIC`, `process=NAME`, and settings of librdkafka such as
//! `session.timeout.ms=3000`. A key that fails eight times becomes a dead letter, or is skipped.
//!
//! The process is called `worker-PID` in the history, unless it is named. The header has no settings;
//! the test has them.

use std::time::Duration;

use campanile::prelude::*;
use campanile::{
    Backoff, Consumer, DeadLetter, Disposition, IdempotencyConfig, OnGiveUp, ProcessingOrder,
    Request, RetryTopics, consumer::Summary,
};
use campanile_admin::StoreConfig;
use campanile_test::history::HistoryRecorder;
use campanile_tests::{START_TIMEOUT, connect_0_1, log_events, probe_liveness};
use tokio::signal::unix::{SignalKind, signal};
use tower::{Service, ServiceBuilder, ServiceExt};

/// The longest backoff, and the delay of the retry topic.
const MAX_BACKOFF: Duration = Duration::from_millis(500);

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
    /// Minimum processing time.
    #[serde(default)]
    work_ms: u64,
    /// Number of attempts that fail.
    #[serde(default)]
    failures: u32,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Installed first, because the process may be stopped at any time.
    let mut terminated = signal(SignalKind::terminate())?;
    log_events();
    let ([brokers, group, topic, store, folder], options) = arguments()?;
    let history = HistoryRecorder::create(&folder, &*options.process, None)?;
    let config = store.parse::<StoreConfig>()?;
    let store = match options.is_0_1 {
        true => connect_0_1(config).await?,
        false => config.with_connect_timeout(START_TIMEOUT).connect().await?,
    };

    let effects = history.clone();
    let stack = ServiceBuilder::new()
        // Records the answers.
        .layer(history.answers())
        // Records that do not decode never acquire a lock.
        .layer(DecodeLayer::json())
        // A lock per payment.
        .layer(IdempotencyLayer::new(
            store,
            IdempotencyConfig::new("payments")
                .with_lock_ttl(options.lock)
                .with_max_attempts(8)
                .with_backoff(Backoff::new(Duration::from_millis(20), MAX_BACKOFF)?),
            key::field(|p: &Payment| &p.id),
        )?)
        // Records the runs.
        .layer(history.runs())
        // A slow handler fails its attempt.
        .timeout(Duration::from_secs(10))
        .service_fn(move |request| charge(request, effects.clone()));
    let skips = options.dead_letters.is_none();
    let service = tower::service_fn(move |record| {
        record_skip(record, stack.clone(), skips.then(|| history.clone()))
    });

    let mut config = ConsumerConfig::new(brokers, group).set("auto.offset.reset", "earliest");
    for (name, value) in options.kafka {
        config = config.set(name, value);
    }
    let give_up =
        options.dead_letters.map_or(OnGiveUp::Skip, |topic| DeadLetter::topic(topic).into());
    let mut consumer = Consumer::new(config)?
        .subscribe([topic])
        .with_order(options.order)
        .with_drain_timeout(options.drain)
        .with_start_timeout(START_TIMEOUT)
        .on_give_up(give_up);
    if let Some(topic) = options.retries {
        consumer = consumer.with_retry_topics(RetryTopics::new().then(topic, MAX_BACKOFF));
    }
    let serve = consumer.serve(service);
    probe_liveness(serve.handle(), &folder, &options.process);
    let summary: Summary = serve
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn charge(request: Request<Payment>, history: HistoryRecorder) -> Result<(), BoxError> {
    let (lock, payment) = (request.lock()?, request.body());
    if lock.attempt() <= payment.failures {
        return Err("card declined".into());
    }
    tokio::time::sleep(Duration::from_millis(payment.work_ms.max(1))).await;
    history.effect(&request);
    // Against the usual advice, the effect is not the last step, so that a kill can hit effects
    // that are not recorded.
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(())
}

/// Records that the consumer is about to skip a record, because no attempt is left, unless the record
/// becomes a dead letter.
async fn record_skip<S>(
    record: Record,
    stack: S,
    history: Option<HistoryRecorder>,
) -> Result<Outcome<()>, BoxError>
where
    S: Service<Record, Response = Outcome<()>, Error = BoxError>,
{
    let coordinates = record.coordinates().clone();
    let result = stack.oneshot(record).await;
    if let (Err(error), Some(history)) = (&result, history) {
        let is_last = match IdempotencyError::find(&**error) {
            Some(IdempotencyError::AttemptFailed(failed)) => {
                failed.disposition == Disposition::DeadLetter
            }
            Some(IdempotencyError::Exhausted(_)) => true,
            _ => false,
        };
        if is_last {
            history.skipped(&coordinates);
        }
    }
    result
}

/// The parsed options.
struct Options {
    order: ProcessingOrder,
    lock: Duration,
    drain: Duration,
    /// Whether this is a process of release 0.1.
    is_0_1: bool,
    /// The name of the process in the history.
    process: String,
    dead_letters: Option<String>,
    retries: Option<String>,
    kafka: Vec<(String, String)>,
}

impl Options {
    fn parse(given: &[String]) -> Result<Self, BoxError> {
        let mut options = Self {
            order: ProcessingOrder::by_partition(),
            // Expires soon after this process is killed.
            lock: Duration::from_secs(5),
            drain: Duration::from_secs(10),
            is_0_1: false,
            process: format!("worker-{}", std::process::id()),
            dead_letters: None,
            retries: None,
            kafka: Vec::new(),
        };
        for option in given {
            let (name, value) = option.split_once('=').ok_or("options have the form NAME=VALUE")?;
            match (name, value) {
                ("order", "partition") => options.order = ProcessingOrder::by_partition(),
                ("order", "key") => options.order = ProcessingOrder::by_key(),
                ("order", "none") => options.order = ProcessingOrder::unordered(),
                ("lock_ms", _) => options.lock = Duration::from_millis(value.parse()?),
                ("drain_ms", _) => options.drain = Duration::from_millis(value.parse()?),
                ("release", "0.1") => options.is_0_1 = true,
                ("process", _) => options.process = value.into(),
                ("dead_letters", _) => options.dead_letters = Some(value.into()),
                ("retries", _) => options.retries = Some(value.into()),
                _ => options.kafka.push((name.into(), value.into())),
            }
        }
        Ok(options)
    }
}

fn arguments() -> Result<([String; 5], Options), BoxError> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = Options::parse(&arguments.split_off(arguments.len().min(5)))?;
    let arguments = arguments.try_into();
    Ok((arguments.map_err(|given| format!("expected five arguments, got {given:?}"))?, options))
}
