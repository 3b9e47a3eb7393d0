//! Waits until replicas or disks have what was written.
//!
//! `confirm` sends `WAIT` or `WAITAOF` over the connection of the writes. The command blocks that
//! connection until it is answered, so batches that wait use connections of their own (`pool`).

mod confirm;
mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::telemetry::{Counter, instruments};
use campanile_core::{Answer, Command, Operation, Reply};
use campanile_idempotency::StoreError;

pub(crate) use self::confirm::Shortfall;
pub(crate) use self::pool::{ConnectionPool, PooledConnections};
use crate::topology::Topology;

/// The durability that a lock, a step or a completion must reach before it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Durability {
    pub(crate) level: DurabilityLevel,
    pub(crate) replicas: u32,
    pub(crate) timeout: Duration,
}

/// Where a write must have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DurabilityLevel {
    /// The replicas' memory: `WAIT`.
    Memory,
    /// The disks of the primary and of the replicas: `WAITAOF`.
    Disk,
}

/// The state of a store that waits.
pub(crate) struct WaitState {
    pub(crate) durability: Durability,
    pool: ConnectionPool,
    pub(crate) shortfalls: Arc<ShortfallCounter>,
}

/// Counts the completions that were acknowledged before they reached the required replicas or
/// disks.
pub(crate) struct ShortfallCounter {
    count: AtomicU64,
    metric: Counter,
    /// Whether the last wait fell short.
    has_shortfall: AtomicBool,
}

impl Durability {
    /// The name of the Redis command.
    pub(crate) fn command_name(self) -> &'static str {
        match self.level {
            DurabilityLevel::Memory => "WAIT",
            DurabilityLevel::Disk => "WAITAOF",
        }
    }

    /// Checks whether this answer must not be lost: a lock, a step or a completion.
    pub(crate) fn applies_to(answer: &Result<Answer, StoreError>) -> bool {
        let reply = answer.as_ref().map(|answer| &answer.reply);
        matches!(
            reply,
            Ok(Reply::Acquired { .. }
                | Reply::Exhausted { .. }
                | Reply::StepRecorded
                | Reply::Completed)
        )
    }
}

impl WaitState {
    pub(crate) fn new(durability: Durability, pool: ConnectionPool) -> Self {
        Self { durability, pool, shortfalls: Arc::new(ShortfallCounter::new()) }
    }

    /// Creates the same for `topology`, with connections of its own. Both count their shortfalls
    /// together.
    pub(crate) fn with_topology(&self, topology: &Topology) -> Self {
        let (durability, shortfalls) = (self.durability, self.shortfalls.clone());
        Self { durability, pool: ConnectionPool::new(topology), shortfalls }
    }

    /// The timeout of one wait.
    pub(crate) fn timeout(&self) -> Duration {
        self.durability.timeout
    }

    /// Waits for connections that serve one batch.
    pub(crate) async fn connections(&self) -> PooledConnections<'_> {
        self.pool.get().await
    }

    /// Checks whether an answer to one of these commands may need a wait.
    pub(crate) fn applies_to(&self, commands: &[Command]) -> bool {
        commands.iter().any(|command| {
            matches!(
                command.operation,
                Operation::Acquire { .. }
                    | Operation::RecordStep { .. }
                    | Operation::Complete { .. }
            )
        })
    }
}

impl ShortfallCounter {
    fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            metric: Counter::new(&instruments::REDIS_SHORTFALLS, &[]),
            has_shortfall: AtomicBool::new(false),
        }
    }

    /// Records the result of a wait and, if it fell short, how many completions that affects. Logs
    /// only when the result changes, not for every wait.
    pub(crate) fn record(&self, address: &str, completions: usize, shortfall: Option<&Shortfall>) {
        if shortfall.is_some() {
            self.count.fetch_add(completions as u64, Ordering::Relaxed);
            self.metric.increment(completions as u64);
        }
        let had_shortfall = self.has_shortfall.swap(shortfall.is_some(), Ordering::Relaxed);
        match shortfall {
            Some(shortfall) if !had_shortfall => tracing::warn!(
                address,
                reason = shortfall as &dyn std::error::Error,
                "writes are not replicated in time: a Redis failover would lose acknowledged \
                 completions, and no lock is granted"
            ),
            None if had_shortfall => {
                tracing::info!(address, "completions and locks are replicated again");
            }
            _ => {}
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
