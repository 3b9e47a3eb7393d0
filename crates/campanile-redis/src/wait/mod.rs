//! Waits until replicas or disks have what was written.
//!
//! `confirm` sends `WAIT` or `WAITAOF` over the connection of the writes. The command blocks that
//! connection until it is answered, so batches that wait use connections of their own (`lanes`).

mod confirm;
mod lanes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::{Answer, Command, Operation, Reply};
use campanile_idempotency::StoreError;

pub(crate) use self::confirm::Short;
pub(crate) use self::lanes::{Lane, Lanes};
use crate::topology::Topology;

/// The durability that a lock or a completion must reach before it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    pub(crate) reach: Reach,
    pub(crate) replicas: u32,
    pub(crate) timeout: Duration,
}

/// Where a write must have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The replicas' memory: `WAIT`.
    Memory,
    /// The disks of the primary and of the replicas: `WAITAOF`.
    Disk,
}

/// The state of a store that waits.
pub(crate) struct Waiting {
    pub(crate) wait: Wait,
    lanes: Lanes,
    pub(crate) shortfalls: Arc<Shortfalls>,
}

/// Counts the completions that were acknowledged before they reached the required replicas or
/// disks.
#[derive(Default)]
pub(crate) struct Shortfalls {
    count: AtomicU64,
    /// Whether the last wait fell short.
    is_short: AtomicBool,
}

impl Wait {
    /// The name of the Redis command.
    pub(crate) fn command(self) -> &'static str {
        match self.reach {
            Reach::Memory => "WAIT",
            Reach::Disk => "WAITAOF",
        }
    }

    /// Checks whether this answer must not be lost: a lock or a completion.
    pub(crate) fn is_for(answer: &Result<Answer, StoreError>) -> bool {
        let reply = answer.as_ref().map(|answer| &answer.reply);
        matches!(reply, Ok(Reply::Acquired { .. } | Reply::Exhausted { .. } | Reply::Completed))
    }
}

impl Waiting {
    pub(crate) fn new(wait: Wait, lanes: Lanes) -> Self {
        Self { wait, lanes, shortfalls: Arc::default() }
    }

    /// Creates the same for `topology`, with connections of its own. Both count their shortfalls
    /// together.
    pub(crate) fn over(&self, topology: &Topology) -> Self {
        let (wait, shortfalls) = (self.wait, self.shortfalls.clone());
        Self { wait, lanes: Lanes::to(topology), shortfalls }
    }

    /// The timeout of one wait.
    pub(crate) fn timeout(&self) -> Duration {
        self.wait.timeout
    }

    /// Waits for connections that serve one batch.
    pub(crate) async fn lane(&self) -> Lane<'_> {
        self.lanes.take().await
    }

    /// Checks whether an answer to one of these commands may need a wait.
    pub(crate) fn is_for(&self, commands: &[Command]) -> bool {
        commands.iter().any(|command| {
            matches!(command.operation, Operation::Acquire { .. } | Operation::Complete { .. })
        })
    }
}

impl Shortfalls {
    /// Records the result of a wait and, if it fell short, how many completions that affects. Logs
    /// only when the result changes, not for every wait.
    pub(crate) fn note(&self, address: &str, completions: usize, short: Option<&Short>) {
        if short.is_some() {
            self.count.fetch_add(completions as u64, Ordering::Relaxed);
        }
        let was_short = self.is_short.swap(short.is_some(), Ordering::Relaxed);
        match short {
            Some(short) if !was_short => tracing::warn!(
                address,
                reason = short as &dyn std::error::Error,
                "writes are not replicated in time: a Redis failover would lose acknowledged \
                 completions, and no lock is granted"
            ),
            None if was_short => {
                tracing::info!(address, "completions and locks are replicated again");
            }
            _ => {}
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
