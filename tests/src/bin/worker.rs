//! A consumer process to be stopped and killed: processes records of the form
//! `{"id":"…","work_ms":3}` and writes down what it did. Arguments: brokers, group, topic, Redis URL,
//! folder of the ledgers, then options: `order=partition` or `key`, `lock_ms=5000`,
//! `drain_ms=10000`, and settings of librdkafka as `session.timeout.ms=3000`.
//!
//! Each process appends to a ledger of its own, one write for each line, so that what was written
//! survives a SIGKILL. Times are in microseconds since boot:
//! `begin KEY TOKEN TOPIC/PARTITION@OFFSET RECORD-KEY AT` when a handler begins,
//! `run KEY TOKEN ATTEMPT START END` as its effect, `dropped TOPIC/PARTITION@OFFSET AT` when it is
//! dropped before its end, and `PROCESSED|DUPLICATE TOPIC/PARTITION@OFFSET RECORD-KEY AT` for each
//! answer.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use campanile::prelude::*;
use campanile::{Clock, Order, Summary};
use tokio::signal::unix::{SignalKind, signal};
use tower::{Service, ServiceBuilder, ServiceExt};

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
    /// How long it takes, at least.
    #[serde(default)]
    work_ms: u64,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // First, for it may be stopped at any moment.
    let mut terminated = signal(SignalKind::terminate())?;
    let ([brokers, group, topic, redis, folder], options) = arguments()?;
    let ledger = Arc::new(Ledger::open(&folder)?);
    let store = RedisStore::connect(redis).await?;

    let runs = ledger.clone();
    let guarded = ServiceBuilder::new()
        // what does not decode never takes a lock
        .layer(DecodeLayer::json())
        // one lock for each payment
        .layer(
            IdempotencyLayer::new(store, "payments", key::field(|p: &Payment| &p.id))?
                .with_lock_ttl(options.lock)?,
        )
        // a slow handler fails its attempt
        .timeout(Duration::from_secs(10))
        .service_fn(move |request| charge(request, runs.clone()));
    // writes down what the layer has answered
    let service = tower::service_fn(move |record| answer(record, guarded.clone(), ledger.clone()));

    let mut config = ConsumerConfig::new(brokers, group).set("auto.offset.reset", "earliest");
    for (name, value) in options.kafka {
        config = config.set(name, value);
    }
    let summary: Summary = Consumer::new(config)?
        .subscribe([topic])
        .with_order(options.order)
        .with_drain_timeout(options.drain)
        .serve(service)
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn charge(request: Request<Payment>, ledger: Arc<Ledger>) -> Result<(), BoxError> {
    let start = ledger.now();
    let (lock, payment) = (request.lock().ok_or("there is a lock")?, request.body());
    let open = Open::begin(&request, lock.token().get(), &ledger)?;
    tokio::time::sleep(Duration::from_millis(payment.work_ms.max(1))).await;
    let (token, attempt, end) = (lock.token(), lock.attempt(), ledger.now());
    ledger.write(format!("run {} {token} {attempt} {start} {end}\n", payment.id))?;
    // Not the last step, against the advice: so that a kill finds effects without a record.
    tokio::time::sleep(Duration::from_millis(2)).await;
    open.end();
    Ok(())
}

/// A handler that has begun.
struct Open {
    coordinates: String,
    ledger: Arc<Ledger>,
    ended: bool,
}

impl Open {
    fn begin(
        request: &Request<Payment>,
        token: u64,
        ledger: &Arc<Ledger>,
    ) -> Result<Self, BoxError> {
        let (id, record) = (&request.body().id, request.record());
        let (coordinates, key) = (record.coordinates().to_string(), record_key(record)?);
        let at = ledger.now();
        ledger.write(format!("begin {id} {token} {coordinates} {key} {at}\n"))?;
        Ok(Self { coordinates, ledger: ledger.clone(), ended: false })
    }

    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.ended {
            let line = format!("dropped {} {}\n", self.coordinates, self.ledger.now());
            self.ledger.write(line).expect("the folder of the ledgers takes lines");
        }
    }
}

async fn answer<S>(record: Record, service: S, ledger: Arc<Ledger>) -> Result<(), BoxError>
where
    S: Service<Record, Response = Outcome<()>, Error = BoxError>,
{
    let key = record_key(&record)?;
    let word = match service.oneshot(record.clone()).await? {
        Outcome::Processed(()) => "PROCESSED",
        Outcome::Duplicate(_) => "DUPLICATE",
        other => return Err(format!("{}: {other:?}", record.coordinates()).into()),
    };
    let at = ledger.now();
    ledger.write(format!("{word} {} {key} {at}\n", record.coordinates()))
}

fn record_key(record: &Record) -> Result<String, BoxError> {
    Ok(String::from_utf8(record.key().ok_or("a record key")?.to_vec())?)
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
        // One write of an append-only file: never half a line, never between those of another.
        Ok((&self.file).write_all(line.as_bytes())?)
    }
}

/// What the options say.
struct Options {
    order: Order,
    lock: Duration,
    drain: Duration,
    kafka: Vec<(String, String)>,
}

impl Options {
    fn parse(given: &[String]) -> Result<Self, BoxError> {
        let mut options = Self {
            order: Order::by_partition(),
            // Soon taken over when this process is killed.
            lock: Duration::from_secs(5),
            drain: Duration::from_secs(10),
            kafka: Vec::new(),
        };
        for option in given {
            let (name, value) = option.split_once('=').ok_or("an option is NAME=VALUE")?;
            match (name, value) {
                ("order", "partition") => options.order = Order::by_partition(),
                ("order", "key") => options.order = Order::by_key(),
                ("lock_ms", _) => options.lock = Duration::from_millis(value.parse()?),
                ("drain_ms", _) => options.drain = Duration::from_millis(value.parse()?),
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
    Ok((arguments.map_err(|given| format!("five arguments, not {given:?}"))?, options))
}
