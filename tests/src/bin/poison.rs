//! A consumer process that dies, on one record, where it is told to. Arguments: brokers, topic, Redis
//! URL, folder, attempts, the point at which it dies.
//!
//! Records are of the form `{"id":"…"}`, and the one it dies on has the id `poison`. Its dead letters
//! go to the topic with `.dead` behind its name. Each handler that begins appends `ID TOKEN ATTEMPT`
//! to the file `runs` in the folder.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::abort;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile::prelude::*;
use campanile::store::{Answer, Command, Operation, Reply, Store, StoreError};
use campanile::{DeadLetter, RedisConfig};
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceBuilder;

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

/// Where it dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Point {
    Nowhere,
    /// In the handler.
    Handler,
    /// A burial lock was granted.
    Granted,
    /// The last attempt has failed, and the letter is about to be published.
    Failed,
    /// As before, but there it waits for the file `go` in the folder, and is killed afterwards.
    Sent,
    /// The letter was acknowledged.
    Acknowledged,
    /// The entry is FAILED; nobody has heard of it.
    Rejected,
    /// The driver has heard of it, and begins with the next record.
    Settled,
}

impl Point {
    fn parse(name: &str) -> Result<Self, BoxError> {
        Ok(match name {
            "nowhere" => Self::Nowhere,
            "handler" => Self::Handler,
            "granted" => Self::Granted,
            "failed" => Self::Failed,
            "sent" => Self::Sent,
            "acknowledged" => Self::Acknowledged,
            "rejected" => Self::Rejected,
            "settled" => Self::Settled,
            _ => return Err(format!("no point: {name}").into()),
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let [brokers, topic, redis, folder, attempts, point] = arguments()?;
    let (folder, point) = (PathBuf::from(folder), Point::parse(&point)?);
    let runs = OpenOptions::new().create(true).append(true).open(folder.join("runs"))?;
    let config = RedisConfig::new(redis);
    let store =
        Mortal { store: RedisStore::connect(config).await?, point, rejected: Arc::default() };

    let (runs, has_failed) = (Arc::new(runs), Arc::new(AtomicBool::new(false)));
    let failing = has_failed.clone();
    let service = ServiceBuilder::new()
        // what does not decode never takes a lock
        .layer(DecodeLayer::json())
        // few attempts, and locks that expire soon after their process has died
        .layer(
            IdempotencyLayer::new(store, "poison", key::field(|p: &Payment| &p.id))?
                .with_max_attempts(attempts.parse()?)?
                .with_lock_ttl(Duration::from_secs(1))?,
        )
        .service_fn(move |request| charge(request, point, runs.clone(), failing.clone()));

    let config = ConsumerConfig::new(brokers, &*topic)
        .set("auto.offset.reset", "earliest")
        // One that is started again has its partitions at once.
        .set("group.instance.id", "worker")
        .set("session.timeout.ms", "10000");
    let letters = DeadLetter::by_topic(move |topic| {
        choose(point, has_failed.load(Ordering::SeqCst), &folder);
        format!("{topic}.dead")
    });
    let mut terminated = signal(SignalKind::terminate())?;
    let summary = Consumer::new(config)?
        .subscribe([topic])
        .with_given_up(letters)
        .serve(service)
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn charge(
    request: Request<Payment>,
    point: Point,
    runs: Arc<File>,
    has_failed: Arc<AtomicBool>,
) -> Result<(), BoxError> {
    let (id, lock) = (&request.body().id, request.lock().ok_or("there is a lock")?);
    // One write of an append-only file: it survives what follows.
    (&*runs).write_all(format!("{id} {} {}\n", lock.token(), lock.attempt()).as_bytes())?;
    match (&**id, point) {
        ("poison", Point::Handler) => abort(),
        ("poison", _) => {
            has_failed.store(true, Ordering::SeqCst);
            Err("no such account".into())
        }
        _ => Ok(()),
    }
}

/// The topic for dead letters is chosen: at the start, and before each publication.
fn choose(point: Point, has_failed: bool, folder: &Path) {
    match point {
        Point::Failed if has_failed => abort(),
        Point::Sent if has_failed => {
            while !folder.join("go").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        _ => {}
    }
}

/// A store whose process dies before or after some of its commands.
#[derive(Clone)]
struct Mortal {
    store: RedisStore,
    point: Point,
    rejected: Arc<AtomicBool>,
}

impl Store for Mortal {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let rejects = matches!(command.operation, Operation::Reject { .. });
        let acquires = matches!(command.operation, Operation::Acquire { .. });
        if self.point == Point::Acknowledged && rejects {
            abort();
        }
        // There is one partition, so the record before was finished.
        if self.point == Point::Settled && acquires && self.rejected.load(Ordering::SeqCst) {
            abort();
        }
        let answer = self.store.apply(command).await?;
        if self.point == Point::Granted && matches!(answer.reply, Reply::Exhausted { .. }) {
            abort();
        }
        if self.point == Point::Rejected && rejects {
            abort();
        }
        self.rejected.fetch_or(rejects, Ordering::SeqCst);
        Ok(answer)
    }
}

fn arguments() -> Result<[String; 6], BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    arguments.try_into().map_err(|given| format!("six arguments, not {given:?}").into())
}
