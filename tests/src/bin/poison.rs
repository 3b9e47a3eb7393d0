//! A consumer process that dies on one record, at a given point. Arguments: brokers, topic, Redis
//! URL, folder, attempts, the point of death.
//!
//! Records have the form `{"id":"…"}`, and the fatal record has the id `poison`. Its dead letters
//! go to the topic's name followed by `.dead`. Each handler appends `ID TOKEN ATTEMPT` to the file
//! `runs` in the folder when it starts.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::abort;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile::IdempotencyConfig;
use campanile::prelude::*;
use campanile::store::{Answer, Command, Operation, Reply, Store, StoreError};
use campanile::{Consumer, DeadLetter, RedisConfig, Request};
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceBuilder;

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

/// Where the process dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CrashPoint {
    Nowhere,
    /// In the handler.
    Handler,
    /// After the last attempt, before the letter is published.
    Unpublished,
    /// As for `Unpublished`, but the process waits for the file `go` in the folder and is killed
    /// afterwards.
    Sent,
    /// After the letter was acknowledged.
    Acknowledged,
    /// After the entry became FAILED, before the process receives the answer.
    GivenUp,
    /// After the driver has processed the answer, when it starts the next record.
    Settled,
}

impl CrashPoint {
    fn parse(name: &str) -> Result<Self, BoxError> {
        Ok(match name {
            "nowhere" => Self::Nowhere,
            "handler" => Self::Handler,
            "unpublished" => Self::Unpublished,
            "sent" => Self::Sent,
            "acknowledged" => Self::Acknowledged,
            "given-up" => Self::GivenUp,
            "settled" => Self::Settled,
            _ => return Err(format!("unknown point: {name}").into()),
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let [brokers, topic, redis, folder, attempts, point] = arguments()?;
    let (folder, point) = (PathBuf::from(folder), CrashPoint::parse(&point)?);
    let runs = OpenOptions::new().create(true).append(true).open(folder.join("runs"))?;
    let (config, exhausted) = (RedisConfig::new(redis), Arc::new(AtomicBool::new(false)));
    let store = CrashingStore {
        store: RedisStore::connect(config).await?,
        point,
        exhausted: exhausted.clone(),
        given_up: Arc::default(),
    };

    let (runs, failing) = (Arc::new(runs), exhausted.clone());
    let service = ServiceBuilder::new()
        // Records that do not decode never acquire a lock.
        .layer(DecodeLayer::json())
        // Few attempts, and locks that expire soon after their process has died.
        .layer(IdempotencyLayer::new(
            store,
            IdempotencyConfig::new("poison")
                .with_max_attempts(attempts.parse()?)
                .with_lock_ttl(Duration::from_secs(5)),
            key::field(|p: &Payment| &p.id),
        )?)
        .service_fn(move |request| charge(request, point, runs.clone(), failing.clone()));

    let config = ConsumerConfig::new(brokers, &*topic)
        .set("auto.offset.reset", "earliest")
        // A restarted process gets its partitions back at once.
        .set("group.instance.id", "worker")
        .set("session.timeout.ms", "10000");
    let letters = DeadLetter::by_topic(move |topic| {
        crash_or_wait(point, exhausted.load(Ordering::SeqCst), &folder);
        format!("{topic}.dead")
    });
    let mut terminated = signal(SignalKind::terminate())?;
    let summary = Consumer::new(config)?
        .subscribe([topic])
        .on_give_up(letters)
        .serve(service)
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn charge(
    request: Request<Payment>,
    point: CrashPoint,
    runs: Arc<File>,
    exhausted: Arc<AtomicBool>,
) -> Result<(), BoxError> {
    let (id, lock) = (&request.body().id, request.lock()?);
    // A single write to an append-only file, which survives the death of the process.
    (&*runs).write_all(format!("{id} {} {}\n", lock.token(), lock.attempt()).as_bytes())?;
    match (&**id, point) {
        ("poison", CrashPoint::Handler) => abort(),
        ("poison", _) => {
            exhausted.store(true, Ordering::SeqCst);
            Err("no such account".into())
        }
        _ => Ok(()),
    }
}

/// Selects the dead-letter topic. Called at startup and before each publication.
fn crash_or_wait(point: CrashPoint, is_exhausted: bool, folder: &Path) {
    match point {
        CrashPoint::Unpublished if is_exhausted => abort(),
        CrashPoint::Sent if is_exhausted => {
            while !folder.join("go").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        _ => {}
    }
}

/// A store that kills its process before or after certain commands.
#[derive(Clone)]
struct CrashingStore {
    store: RedisStore,
    point: CrashPoint,
    /// Whether the last attempt was made.
    exhausted: Arc<AtomicBool>,
    given_up: Arc<AtomicBool>,
}

impl Store for CrashingStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let gives_up = matches!(command.operation, Operation::GiveUp { .. });
        let acquires = matches!(command.operation, Operation::Acquire { .. });
        if self.point == CrashPoint::Acknowledged && gives_up {
            abort();
        }
        // There is a single partition, so the previous record is finished.
        if self.point == CrashPoint::Settled && acquires && self.given_up.load(Ordering::SeqCst) {
            abort();
        }
        let answer = self.store.apply(command).await?;
        if matches!(answer.reply, Reply::Exhausted { .. }) {
            self.exhausted.store(true, Ordering::SeqCst);
        }
        if self.point == CrashPoint::GivenUp && gives_up {
            abort();
        }
        self.given_up.fetch_or(gives_up, Ordering::SeqCst);
        Ok(answer)
    }
}

fn arguments() -> Result<[String; 6], BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    arguments.try_into().map_err(|given| format!("expected six arguments, got {given:?}").into())
}
