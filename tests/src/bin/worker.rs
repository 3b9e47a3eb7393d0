//! A consumer process to be stopped and killed: processes records of the form `{"id":"…"}` and
//! writes down what it did. Arguments: brokers, group, topic, Redis URL, folder of the ledgers.
//!
//! Each process appends to a ledger of its own, one write for each line, so that what was written
//! survives a SIGKILL: `run KEY TOKEN ATTEMPT START END` as the handler's effect (times in
//! microseconds since boot), and `PROCESSED|DUPLICATE TOPIC/PARTITION@OFFSET KEY` for each answer.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use campanile::prelude::*;
use campanile::{Clock, Summary};
use tokio::signal::unix::{SignalKind, signal};
use tower::{Service, ServiceBuilder, ServiceExt};

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let [brokers, group, topic, redis, folder] = arguments()?;
    let ledger = Arc::new(Ledger::open(&folder)?);
    let store = RedisStore::connect(redis).await?;

    let runs = ledger.clone();
    let guarded = ServiceBuilder::new()
        // what does not decode never takes a lock
        .layer(DecodeLayer::json())
        // one lock for each payment, soon taken over when this process is killed
        .layer(
            IdempotencyLayer::new(store, "payments", key::field(|p: &Payment| &p.id))?
                .with_lock_ttl(Duration::from_secs(5))?,
        )
        // a slow handler fails its attempt
        .timeout(Duration::from_secs(10))
        .service_fn(move |request| charge(request, runs.clone()));
    // writes down what the layer has answered
    let service = tower::service_fn(move |record| answer(record, guarded.clone(), ledger.clone()));

    let config = ConsumerConfig::new(brokers, group)
        .set("auto.offset.reset", "earliest")
        .set("session.timeout.ms", "3000")
        .set("heartbeat.interval.ms", "300");
    let mut terminated = signal(SignalKind::terminate())?;
    let summary: Summary = Consumer::new(config)?
        .subscribe([topic])
        .serve(service)
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn charge(request: Request<Payment>, ledger: Arc<Ledger>) -> Result<(), BoxError> {
    let start = ledger.now();
    let lock = request.lock().ok_or("there is a lock")?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let (token, attempt, end) = (lock.token(), lock.attempt(), ledger.now());
    ledger.write(format!("run {} {token} {attempt} {start} {end}\n", request.body().id))?;
    // Not the last step, against the advice: so that a kill finds effects without a record.
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(())
}

async fn answer<S>(record: Record, service: S, ledger: Arc<Ledger>) -> Result<(), BoxError>
where
    S: Service<Record, Response = Outcome<()>, Error = BoxError>,
{
    let key = String::from_utf8(record.key().ok_or("a record key")?.to_vec())?;
    let word = match service.oneshot(record.clone()).await? {
        Outcome::Processed(()) => "PROCESSED",
        Outcome::Duplicate(_) => "DUPLICATE",
        other => return Err(format!("{}: {other:?}", record.coordinates()).into()),
    };
    ledger.write(format!("{word} {} {key}\n", record.coordinates()))
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

fn arguments() -> Result<[String; 5], BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    arguments.try_into().map_err(|given| format!("five arguments, not {given:?}").into())
}
