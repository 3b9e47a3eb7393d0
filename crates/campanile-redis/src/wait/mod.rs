//! Waiting until replicas, or disks, have what was written.
//!
//! `confirm` asks for it, over the connection that was written to, which hangs until that is
//! answered: so the batches that wait have connections of their own (`lanes`).

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

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    pub(crate) reach: Reach,
    pub(crate) replicas: u32,
    pub(crate) timeout: Duration,
}

/// How far a write must have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Into the replicas' memory: `WAIT`.
    Memory,
    /// Onto the disk of the primary, and of the replicas: `WAITAOF`.
    Disk,
}

/// What a store needs for it.
pub(crate) struct Waiting {
    pub(crate) wait: Wait,
    lanes: Lanes,
    pub(crate) shortfalls: Arc<Shortfalls>,
}

/// The completions that were acknowledged although they had not come as far as they must.
#[derive(Default)]
pub(crate) struct Shortfalls {
    count: AtomicU64,
    /// Whether the last one waited for was.
    is_short: AtomicBool,
}

impl Wait {
    /// The name of the command.
    pub(crate) fn command(self) -> &'static str {
        match self.reach {
            Reach::Memory => "WAIT",
            Reach::Disk => "WAITAOF",
        }
    }

    /// Whether this is an answer that may not be lost: a lock, or a completion.
    pub(crate) fn is_for(answer: &Result<Answer, StoreError>) -> bool {
        let reply = answer.as_ref().map(|answer| &answer.reply);
        matches!(reply, Ok(Reply::Acquired { .. } | Reply::Exhausted { .. } | Reply::Completed))
    }
}

impl Waiting {
    pub(crate) fn new(wait: Wait, lanes: Lanes) -> Self {
        Self { wait, lanes, shortfalls: Arc::default() }
    }

    /// The same over connections of its own; shortfalls are counted together.
    pub(crate) fn over(&self, topology: &Topology) -> Self {
        let (wait, shortfalls) = (self.wait, self.shortfalls.clone());
        Self { wait, lanes: Lanes::to(topology), shortfalls }
    }

    /// How long one wait may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.wait.timeout
    }

    /// The connections for one batch.
    pub(crate) async fn lane(&self) -> Lane<'_> {
        self.lanes.take().await
    }

    /// Whether an answer to these commands may have to be waited for.
    pub(crate) fn is_for(&self, commands: &[Command]) -> bool {
        commands.iter().any(|command| {
            matches!(command.operation, Operation::Acquire { .. } | Operation::Complete { .. })
        })
    }
}

impl Shortfalls {
    /// Notes whether what was waited for has come, and for how many completions it has not. Tells
    /// when that changes, and not for each.
    pub(crate) fn note(&self, address: &str, completions: usize, short: Option<&Short>) {
        if short.is_some() {
            self.count.fetch_add(completions as u64, Ordering::Relaxed);
        }
        let was_short = self.is_short.swap(short.is_some(), Ordering::Relaxed);
        match short {
            Some(short) if !was_short => tracing::warn!(
                address,
                reason = short as &dyn std::error::Error,
                "completions are acknowledged that a failover of Redis would lose, and no lock is \
                 granted"
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
