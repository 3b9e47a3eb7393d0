//! A nightly report that is written once, whatever happens to the workers:
//! `cargo run --example job`.
//!
//! A plain function under a `Runner`, without a tower stack. First, two workers try to write the
//! report of the same night. Then a worker sleeps for too long, and the database rejects its write
//! because its fencing token is outdated.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::FencingToken;
use campanile::IdempotencyConfig;
use campanile::policy::{OnLocked, OnLost};
use campanile::prelude::*;

/// Stands in for a table of reports with one row for each night.
#[derive(Clone, Default)]
struct Database(Arc<Mutex<HashMap<String, (FencingToken, &'static str)>>>);

impl Database {
    /// Stands in for `INSERT INTO reports (night, token, author) VALUES ($1, $2, $3) ON CONFLICT
    /// (night) DO UPDATE SET token = $2, author = $3 WHERE reports.token < $2`. Returns whether the
    /// row was written.
    fn write(&self, night: &str, token: FencingToken, author: &'static str) -> bool {
        let mut rows = self.0.lock().expect("no holder of the mutex panics");
        let is_newer = rows.get(night).is_none_or(|row| row.0 < token);
        if is_newer {
            rows.insert(night.to_owned(), (token, author));
        }
        let what = if is_newer { "written" } else { "refused" };
        println!("  {author}: the report of {night} with token {token} is {what}");
        is_newer
    }
}

/// The job. Its write is the last step.
async fn report(
    database: &Database,
    night: &str,
    lock: Option<LockHandle>,
    author: &'static str,
) -> Result<&'static str, BoxError> {
    // The lock is missing only if a policy lets requests through without one.
    let token = lock.ok_or("there is no lock")?.token();
    if database.write(night, token, author) { Ok(author) } else { Err("outdated token".into()) }
}

/// While one worker runs the job, the other is refused; afterwards it gets a duplicate.
async fn run_two_workers(store: &MemoryStore, database: &Database) -> Result<(), BoxError> {
    // Two processes that share a store: each has its own keeper.
    let anna = Runner::new(store.clone(), "reports")?;
    let bert = Runner::new(store.clone(), "reports")?;
    let again = async |lock| report(database, "monday", lock, "bert").await;
    let first = anna.run("monday", async |lock| {
        let refused = bert.run("monday", again).await.expect_err("anna has the lock");
        assert!(IdempotencyError::find(&*refused).is_some_and(IdempotencyError::is_contention));
        println!("  bert: {refused}");
        report(database, "monday", lock, "anna").await
    });
    assert_eq!(first.await?, Outcome::Processed("anna"));
    assert!(bert.run("monday", again).await?.is_duplicate());
    println!("  bert: the report exists already");
    Ok(())
}

/// A worker that sleeps for longer than its lock lives loses the key to another, and its write
/// comes too late.
async fn outlive_lock(store: &MemoryStore, database: &Database) -> Result<(), BoxError> {
    let short = Duration::from_millis(500);
    let config = IdempotencyConfig::new("reports").with_lock_ttl(short).with_max_hold(short);
    // A runner gets the key at each run, so its layer needs no extractor.
    let layer = IdempotencyLayer::new(store.clone(), config, ())?;
    // By default, anna's job would be dropped when its lock is lost.
    let anna = Runner::from(layer.on_lost(OnLost::Notify));
    let layer = IdempotencyLayer::new(store.clone(), "reports", ())?;
    let bert = Runner::from(layer.on_locked(OnLocked::Wait { at_most: short * 100 }));

    let late = anna.run("tuesday", async |lock: Option<LockHandle>| {
        let lost = lock.as_ref().ok_or("there is no lock")?.lost().await;
        println!("  anna: {lost}; still asleep");
        let taken =
            bert.run("tuesday", async |lock| report(database, "tuesday", lock, "bert").await);
        assert_eq!(taken.await?, Outcome::Processed("bert"));
        report(database, "tuesday", lock, "anna").await
    });
    let error = late.await.expect_err("anna is too late");
    let Some(IdempotencyError::AttemptFailed(failed)) = IdempotencyError::find(&*error) else {
        return Err(error);
    };
    println!("  anna: {failed}: {}", failed.source);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    campanile_examples::no_args()?;
    let (store, database) = (MemoryStore::new(), Database::default());
    println!("monday: two workers at the same time");
    run_two_workers(&store, &database).await?;
    println!("tuesday: one of them falls asleep");
    outlive_lock(&store, &database).await?;
    let rows = database.0.lock().expect("no holder of the mutex panics");
    assert_eq!((rows["monday"].1, rows["tuesday"].1), ("anna", "bert"));
    Ok(())
}
