//! Confirmation that writes have reached the required replicas or disks.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use campanile_core::StoreKey;
use campanile_idempotency::StoreError;
use redis::{Cmd, RedisError, Value, cmd};
use tokio::time::Instant;

use super::{Durability, DurabilityLevel};
use crate::bucket::Buckets;
use crate::connection::ConnectionHandle;
use crate::failure::{self, Failure};
use crate::key::{write_barrier_key, write_entry_key};
use crate::store::MAX_TIMEOUT;

/// A write for `WAIT` to wait for, which covers everything written before. `WAIT` alone may cover
/// only the writes of its own connection (as Valkey 8 does), and a command that is repeated because
/// its answer was lost writes nothing. The key expires after a second.
const BARRIER_SCRIPT: &str = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], '', 'PX', 1000)";

/// The same by writing an entry again, as it is, while its slot is being moved to another node of
/// the cluster: the old node creates no keys any more, and a key that exists on both nodes could stop
/// the move. Fails if the entry is gone.
const REWRITE_SCRIPT: &str = "#!lua flags=allow-oom\n\
     redis.call('SET', KEYS[1], redis.call('GET', KEYS[1]), 'KEEPTTL')";

/// The shortest timeout of `WAIT`; with 0, it never times out.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

/// Why a write may not have reached the required replicas or disks.
#[derive(Clone, Debug)]
pub(crate) enum Shortfall {
    /// The wait timed out.
    TimedOut { durability: Durability, progress: ReplicationProgress },
    /// The server did not report how far the write has come.
    Failed(StoreError),
}

/// How far a write had come when the wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplicationProgress {
    /// Whether the primary itself has it where required: always true for
    /// [`DurabilityLevel::Memory`].
    primary: bool,
    replicas: u32,
}

impl Durability {
    /// Waits until everything written before has reached the required replicas or disks, or until
    /// the timeout. Blocks the connection meanwhile. The server has just answered for the entry of
    /// this key.
    ///
    /// # Errors
    /// Fails if the connection breaks, or if the server is no longer the primary or no longer
    /// has the entry.
    pub(crate) async fn confirm(
        self,
        handle: &ConnectionHandle,
        key: &StoreKey,
        buckets: Buckets,
    ) -> Result<Option<Shortfall>, RedisError> {
        let since = Instant::now();
        let mut name = Vec::new();
        write_barrier_key(&mut name, key, buckets);
        let mut progress = self.query(handle, BARRIER_SCRIPT, &name, false).await;
        if let Err(Failure::Moved(_) | Failure::Ask(_)) = progress {
            // Both waits together take no longer than one.
            let timeout = self.timeout.saturating_sub(since.elapsed()).max(MIN_TIMEOUT);
            let rest = Self { timeout, ..self };
            name.clear();
            write_entry_key(&mut name, key, buckets);
            // `ASKING`, because this may be the node to which the slot is being moved.
            progress = rest.query(handle, REWRITE_SCRIPT, &name, true).await;
        }
        match progress {
            Ok(progress) if self.is_reached(progress) => Ok(None),
            Ok(progress) => Ok(Some(Shortfall::TimedOut { durability: self, progress })),
            Err(Failure::Connection(error)) => Err(error),
            // The keys have moved to another node, together with what was written.
            Err(Failure::Moved(error) | Failure::Ask(error)) => Err(error.into()),
            Err(failure) => Ok(Some(Shortfall::Failed(failure.into()))),
        }
    }

    /// Runs the script, and waits until its write is where it is required.
    async fn query(
        self,
        handle: &ConnectionHandle,
        script: &str,
        key: &[u8],
        asking: bool,
    ) -> Result<ReplicationProgress, Failure> {
        let barrier = cmd("EVAL").arg(script).arg(1).arg(key).take();
        let answers = handle.send_all(&[barrier, self.wait_command()], asking).await;
        let answers = answers.map_err(Failure::Connection)?;
        let Ok([barrier, answer]) = <[Value; 2]>::try_from(answers) else {
            return Err(Failure::unexpected("expected two replies to two commands"));
        };
        failure::check_reply(Ok(barrier))?;
        let answer = failure::check_reply(Ok(answer))?;
        self.parse(answer).ok_or_else(|| Failure::unexpected("unexpected reply to WAIT or WAITAOF"))
    }

    fn is_reached(self, progress: ReplicationProgress) -> bool {
        progress.primary && progress.replicas >= self.replicas
    }

    fn wait_command(self) -> Cmd {
        let mut command = cmd(self.command_name());
        if self.level == DurabilityLevel::Disk {
            command.arg(1);
        }
        // Redis refuses a timeout that is out of its range.
        let milliseconds = self.timeout.min(MAX_TIMEOUT).as_nanos().div_ceil(1_000_000);
        let milliseconds = u64::try_from(milliseconds).expect("at most a day");
        command.arg(self.replicas).arg(milliseconds);
        command
    }

    fn parse(self, answer: Value) -> Option<ReplicationProgress> {
        let number = |value: &Value| match value {
            Value::Int(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        match (self.level, answer) {
            (DurabilityLevel::Memory, answer) => {
                Some(ReplicationProgress { primary: true, replicas: number(&answer)? })
            }
            (DurabilityLevel::Disk, Value::Array(answer)) => {
                let [local, replicas] = &*answer else { return None };
                Some(ReplicationProgress {
                    primary: number(local)? > 0,
                    replicas: number(replicas)?,
                })
            }
            (DurabilityLevel::Disk, _) => None,
        }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { durability: Durability { replicas, timeout, .. }, progress } => {
                let local =
                    if progress.primary { "" } else { "not on the primary's disk, and on " };
                let ReplicationProgress { replicas: confirmed, .. } = progress;
                write!(
                    f,
                    "write not confirmed in {timeout:?}: {local}{confirmed} of {replicas} replicas"
                )
            }
            Self::Failed(_) => {
                f.write_str("Redis did not report how far a write has been replicated")
            }
        }
    }
}

impl Error for Shortfall {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            Self::TimedOut { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_of_wait_is_rounded_up_and_at_most_a_day() {
        let command = |timeout| {
            let command = Durability { level: DurabilityLevel::Memory, replicas: 1, timeout };
            command.wait_command().get_packed_command()
        };
        for (timeout, expected) in [
            (Duration::from_nanos(1), 1),
            (Duration::from_micros(2001), 3),
            (Duration::MAX, 24 * 60 * 60 * 1000),
        ] {
            let expected = cmd("WAIT").arg(1).arg(expected).get_packed_command();
            assert_eq!(command(timeout), expected, "{timeout:?}");
        }
    }

    #[test]
    fn failed_wait_has_the_error_of_redis_as_source() {
        let shortfall = Shortfall::Failed(Failure::unexpected("no number").into());
        assert!(shortfall.source().is_some_and(|source| source.is::<StoreError>()));
    }
}
