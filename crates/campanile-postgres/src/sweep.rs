//! Entries that are over are deleted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use campanile_idempotency::StoreError;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::store::Inner;

/// How many pages of the table are gone through at a time: 2 MiB, some milliseconds.
const PAGES: i32 = 256;

/// Goes through the table while the store is used.
#[derive(Debug)]
pub(crate) struct Sweeper {
    interval: Duration,
    is_running: Arc<AtomicBool>,
}

impl Sweeper {
    /// It rests so long before it goes through the table, each time.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, is_running: Arc::default() }
    }

    /// Begins, on the runtime that uses the store, unless that was done.
    pub(crate) fn begin(&self, store: &Arc<Inner>) {
        if !self.is_running.swap(true, Ordering::Relaxed) {
            let running = Running(Arc::clone(&self.is_running));
            tokio::spawn(run(Arc::downgrade(store), self.interval, running));
        }
    }
}

/// Until it is dropped, which may be together with its runtime; the store may be used on another.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

async fn run(store: Weak<Inner>, interval: Duration, _running: Running) {
    let mut first = 0;
    loop {
        // Rests first: a process that is started again and again does not sweep each time.
        if first == 0 {
            sleep(interval).await;
        }
        let Some(store) = store.upgrade() else {
            return;
        };
        let begun = Instant::now();
        first = match some(&store, first).await {
            Ok(Swept { next: Some(next), .. }) => next,
            Ok(_) => 0,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "entries that are over were not deleted");
                0
            }
        };
        drop(store);
        // A fifth of a connection's time at most.
        sleep(begun.elapsed() * 4).await;
    }
}

/// Goes through the whole table.
pub(crate) async fn all(store: &Inner) -> Result<u64, StoreError> {
    let (mut first, mut deleted) = (0, 0);
    loop {
        let swept = some(store, first).await?;
        deleted += swept.deleted;
        match swept.next {
            Some(next) => first = next,
            None => return Ok(deleted),
        }
    }
}

struct Swept {
    deleted: u64,
    /// The page to go on with, if this was not the end, and nobody else sweeps.
    next: Option<i64>,
}

/// Goes through some pages.
async fn some(store: &Inner, first: i64) -> Result<Swept, StoreError> {
    const SWEEP: &str = "SELECT deleted, next FROM campanile.sweep($1, $2)";
    let swept = async {
        let pool = &store.pool;
        let lease = pool.lease().await.map_err(|error| pool.unreachable(error))?;
        let swept = async {
            let statement = lease.prepare_cached(SWEEP).await?;
            let row = lease.query_one(&statement, &[&first, &PAGES]).await?;
            let deleted: Option<i64> = row.try_get("deleted")?;
            let next = row.try_get("next")?;
            Ok(Swept { deleted: deleted.unwrap_or(0).cast_unsigned(), next })
        };
        let swept = swept.await.map_err(|error| StoreError::from(Failure::Server(error)))?;
        lease.end();
        Ok(swept)
    };
    store.bounded(swept).await
}
