//! A consumer process for tests that stop and kill it: processes records of the form
//! `{"id":"…","work_ms":3,"failures":0}` and logs its work to a ledger. Arguments: brokers, group,
//! topic, URL of the store, folder of the ledgers, then options: `order=partition` or `key`,
//! `lock_ms=5000`, `drain_ms=10000`, `release=before` for a process of before details existed, and
//! settings of librdkafka such as `session.timeout.ms=3000`. A key that fails eight times is skipped.
//!
//! Each process appends to its own ledger with one write per line, so that the lines survive a
//! SIGKILL. Times are in microseconds since boot. The lines are:
//!
//! * `begin KEY TOKEN TOPIC/PARTITION@OFFSET RECORD-KEY AT` when a handler starts,
//! * `run KEY TOKEN ATTEMPT START END` as the handler's effect,
//! * `dropped TOPIC/PARTITION@OFFSET AT` when a handler fails or is dropped before it finishes,
//! * `PROCESSED|DUPLICATE|GIVEN_UP TOPIC/PARTITION@OFFSET RECORD-KEY AT` for each answer of the layer.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use campanile::prelude::*;
use campanile::{
    Backoff, Consumer, IdempotencyConfig, OnGiveUp, ProcessingOrder, Request, consumer::Summary,
    lock::Clock,
};
use campanile_admin::StoreConfig;
use campanile_tests::connect_before;
use tokio::signal::unix::{SignalKind, signal};
use tower::{Service, ServiceBuilder, ServiceExt};

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
    let ([brokers, group, topic, store, folder], options) = arguments()?;
    let ledger = Arc::new(Ledger::open(&folder)?);
    let store = match options.before {
        true => connect_before(&store).await?,
        false => store.parse::<StoreConfig>()?.connect().await?,
    };

    let runs = ledger.clone();
    let guarded = ServiceBuilder::new()
        // Records that do not decode never acquire a lock.
        .layer(DecodeLayer::json())
        // A lock per payment.
        .layer(IdempotencyLayer::new(
            store,
            IdempotencyConfig::new("payments")
                .with_lock_ttl(options.lock)
                .with_max_attempts(8)
                .with_backoff(Backoff::new(Duration::from_millis(20), Duration::from_millis(500))?),
            key::field(|p: &Payment| &p.id),
        )?)
        // A slow handler fails its attempt.
        .timeout(Duration::from_secs(10))
        .service_fn(move |request| charge(request, runs.clone()));
    // Logs the layer's answers.
    let service =
        tower::service_fn(move |record| log_answer(record, guarded.clone(), ledger.clone()));

    let mut config = ConsumerConfig::new(brokers, group).set("auto.offset.reset", "earliest");
    for (name, value) in options.kafka {
        config = config.set(name, value);
    }
    let summary: Summary = Consumer::new(config)?
        .subscribe([topic])
        .with_order(options.order)
        .with_drain_timeout(options.drain)
        .on_give_up(OnGiveUp::Skip)
        .serve(service)
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn charge(request: Request<Payment>, ledger: Arc<Ledger>) -> Result<(), BoxError> {
    let start = ledger.now();
    let (lock, payment) = (request.lock_handle().ok_or("the request has no lock")?, request.body());
    let run = RunGuard::start(&request, lock.token().get(), &ledger)?;
    if lock.attempt() <= payment.failures {
        return Err("card declined".into());
    }
    tokio::time::sleep(Duration::from_millis(payment.work_ms.max(1))).await;
    let (token, attempt, end) = (lock.token(), lock.attempt(), ledger.now());
    ledger.write(format!("run {} {token} {attempt} {start} {end}\n", payment.id))?;
    // Against the usual advice, the effect is not the last step, so that a kill can hit effects
    // that are not recorded.
    tokio::time::sleep(Duration::from_millis(2)).await;
    run.finish();
    Ok(())
}

/// A handler that has started.
struct RunGuard {
    coordinates: String,
    ledger: Arc<Ledger>,
    finished: bool,
}

impl RunGuard {
    fn start(
        request: &Request<Payment>,
        token: u64,
        ledger: &Arc<Ledger>,
    ) -> Result<Self, BoxError> {
        let (id, record) = (&request.body().id, request.record());
        let (coordinates, key) = (record.coordinates().to_string(), record_key(record)?);
        let at = ledger.now();
        ledger.write(format!("begin {id} {token} {coordinates} {key} {at}\n"))?;
        Ok(Self { coordinates, ledger: ledger.clone(), finished: false })
    }

    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        if !self.finished {
            let line = format!("dropped {} {}\n", self.coordinates, self.ledger.now());
            self.ledger.write(line).expect("the ledger is writable");
        }
    }
}

async fn log_answer<S>(record: Record, service: S, ledger: Arc<Ledger>) -> Result<(), BoxError>
where
    S: Service<Record, Response = Outcome<()>, Error = BoxError>,
{
    let key = record_key(&record)?;
    let word = match service.oneshot(record.clone()).await? {
        Outcome::Processed(()) => "PROCESSED",
        Outcome::Duplicate(_) => "DUPLICATE",
        Outcome::GivenUp(_) => "GIVEN_UP",
        other => return Err(format!("{}: {other:?}", record.coordinates()).into()),
    };
    let at = ledger.now();
    ledger.write(format!("{word} {} {key} {at}\n", record.coordinates()))
}

fn record_key(record: &Record) -> Result<String, BoxError> {
    Ok(String::from_utf8(record.key().ok_or("record without a key")?.to_vec())?)
}

struct Ledger {
    file: File,
    clock: Clock,
}

impl Ledger {
    fn open(folder: &str) -> Result<Self, BoxError> {
        let path = format!("{folder}/{}", std::process::id());
        let file = OpenOptions::new().create_new(true).append(true).open(path)?;
        Ok(Self { file, clock: Clock::boot() })
    }

    fn now(&self) -> u128 {
        self.clock.now().as_micros()
    }

    fn write(&self, line: String) -> Result<(), BoxError> {
        // A single write to an append-only file: lines are never partial, and never interleaved.
        Ok((&self.file).write_all(line.as_bytes())?)
    }
}

/// The parsed options.
struct Options {
    order: ProcessingOrder,
    lock: Duration,
    drain: Duration,
    /// Whether this is a process of before details existed.
    before: bool,
    kafka: Vec<(String, String)>,
}

impl Options {
    fn parse(given: &[String]) -> Result<Self, BoxError> {
        let mut options = Self {
            order: ProcessingOrder::by_partition(),
            // Expires soon after this process is killed.
            lock: Duration::from_secs(5),
            drain: Duration::from_secs(10),
            before: false,
            kafka: Vec::new(),
        };
        for option in given {
            let (name, value) = option.split_once('=').ok_or("options have the form NAME=VALUE")?;
            match (name, value) {
                ("order", "partition") => options.order = ProcessingOrder::by_partition(),
                ("order", "key") => options.order = ProcessingOrder::by_key(),
                ("lock_ms", _) => options.lock = Duration::from_millis(value.parse()?),
                ("drain_ms", _) => options.drain = Duration::from_millis(value.parse()?),
                ("release", "before") => options.before = true,
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
