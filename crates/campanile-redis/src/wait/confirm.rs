//! Confirmation that writes have reached the required replicas or disks.

use std::error::Error;
use std::fmt;

use campanile_idempotency::StoreError;
use redis::{Cmd, Pipeline, RedisError, Value, cmd};

use super::{Durability, DurabilityLevel};
use crate::connection::ConnectionHandle;
use crate::failure::{self, Failure};
use crate::store::MAX_TIMEOUT;

/// A write for `WAIT` to wait for, which covers everything written before. `WAIT` alone may cover
/// only the writes of its own connection (as Valkey 8 does), and a command that is repeated because
/// its answer was lost writes nothing. The key expires after a second.
const BARRIER_SCRIPT: &str = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], '', 'PX', 1000)";

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
    /// the timeout. Blocks the connection meanwhile. `key` is any key that the server serves.
    ///
    /// # Errors
    /// Fails if the connection breaks, or if the server is no longer the primary or no longer
    /// serves `key`.
    pub(crate) async fn confirm(
        self,
        handle: &ConnectionHandle,
        key: &[u8],
    ) -> Result<Option<Shortfall>, RedisError> {
        match self.query(handle, key).await {
            Ok(progress) if progress.primary && progress.replicas >= self.replicas => Ok(None),
            Ok(progress) => Ok(Some(Shortfall::TimedOut { durability: self, progress })),
            Err(Failure::Connection(error)) => Err(error),
            // The keys have moved to another node, together with what was written.
            Err(Failure::Moved(error)) => Err(error.into()),
            Err(failure) => Ok(Some(Shortfall::Failed(failure.into()))),
        }
    }

    async fn query(
        self,
        handle: &ConnectionHandle,
        key: &[u8],
    ) -> Result<ReplicationProgress, Failure> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(cmd("EVAL").arg(BARRIER_SCRIPT).arg(1).arg(key).take());
        pipeline.add_command(self.wait_command());
        let answers = handle.connection.clone().send_packed_commands(&pipeline, 0, 2).await;
        let answers = answers.map_err(Failure::Connection)?;
        let Ok([barrier, answer]) = <[Value; 2]>::try_from(answers) else {
            return Err(Failure::unexpected("expected two replies to two commands"));
        };
        failure::check_reply(Ok(barrier))?;
        let answer = failure::check_reply(Ok(answer))?;
        self.parse(answer).ok_or_else(|| Failure::unexpected("unexpected reply to WAIT or WAITAOF"))
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
    use std::time::Duration;

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
