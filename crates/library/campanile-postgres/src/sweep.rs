//! The deletion of expired entries.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use campanile_idempotency::StoreError;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::store::Inner;

/// The number of pages of the table that one call sweeps: 2 MiB, which takes some milliseconds.
const PAGES_PER_CALL: i32 = 256;

/// Sweeps the table while the store is in use.
#[derive(Debug)]
pub(crate) struct Sweeper {
    interval: Duration,
    is_running: Arc<AtomicBool>,
}

impl Sweeper {
    /// Creates a sweeper that waits for `interval` before each pass over the table.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, is_running: Arc::default() }
    }

    /// Starts sweeping on the current runtime, unless a task already does.
    pub(crate) fn ensure_running(&self, store: &Arc<Inner>) {
        if !self.is_running.swap(true, Ordering::Relaxed) {
            let guard = RunningGuard(Arc::clone(&self.is_running));
            tokio::spawn(run(Arc::downgrade(store), self.interval, guard));
        }
    }
}

/// Clears the flag when it is dropped, also if the whole runtime is dropped. The store may then be
/// used on another runtime.
struct RunningGuard(Arc<AtomicBool>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

async fn run(store: Weak<Inner>, interval: Duration, _guard: RunningGuard) {
    let mut first_page = 0;
    loop {
        // Wait first, so that a process that restarts again and again does not sweep at each start.
        if first_page == 0 {
            sleep(interval).await;
        }
        let Some(store) = store.upgrade() else {
            return;
        };
        let started = Instant::now();
        first_page = match sweep_pages(&store, first_page).await {
            Ok(Swept { next: Some(next), .. }) => next,
            Ok(_) => 0,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "failed to delete expired entries; retrying later");
                0
            }
        };
        drop(store);
        // Use at most a fifth of a connection's time.
        sleep(started.elapsed() * 4).await;
    }
}

/// Sweeps the whole table, and counts the deleted entries.
pub(crate) async fn sweep_table(store: &Inner) -> Result<u64, StoreError> {
    let (mut first_page, mut deleted) = (0, 0);
    loop {
        let swept = sweep_pages(store, first_page).await?;
        deleted += swept.deleted;
        match swept.next {
            Some(next) => first_page = next,
            None => return Ok(deleted),
        }
    }
}

struct Swept {
    deleted: u64,
    /// The next page to sweep; `None` at the end of the table, or if another session is sweeping.
    next: Option<i64>,
}

/// Sweeps `PAGES_PER_CALL` pages of the table, starting at page `first_page`.
async fn sweep_pages(store: &Inner, first_page: i64) -> Result<Swept, StoreError> {
    const SWEEP: &str = "SELECT deleted, next FROM campanile.sweep($1, $2)";
    let swept = async {
        let pool = &store.pool;
        let lease = pool.lease(store.command_timeout).await?;
        let swept = async {
            let statement = lease.prepare_cached(SWEEP).await?;
            let row = lease.query_one(&statement, &[&first_page, &PAGES_PER_CALL]).await?;
            let deleted: Option<i64> = row.try_get("deleted")?;
            let next = row.try_get("next")?;
            Ok(Swept { deleted: deleted.unwrap_or(0).cast_unsigned(), next })
        };
        let swept = swept.await.map_err(|error| StoreError::from(Failure::Server(error)))?;
        lease.release();
        Ok(swept)
    };
    store.with_timeout(swept).await
}
