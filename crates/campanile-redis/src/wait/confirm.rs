//! Confirmation that writes have reached the required replicas or disks.

use std::error::Error;
use std::fmt;

use campanile_idempotency::StoreError;
use redis::{Cmd, Pipeline, RedisError, Value, cmd};

use super::{Reach, Wait};
use crate::connection::Link;
use crate::failure::{self, Failure};

/// A write for `WAIT` to wait for, which covers everything written before. `WAIT` alone may cover
/// only the writes of its own connection (as Valkey 8 does), and a command that is repeated because
/// its answer was lost writes nothing. The key expires after a second.
const BARRIER: &str = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], '', 'PX', 1000)";

/// Why a write may not have reached the required replicas or disks.
#[derive(Clone, Debug)]
pub(crate) enum Short {
    /// The wait timed out.
    Late { wait: Wait, reached: Reached },
    /// The server did not report how far the write has come.
    Refused(StoreError),
}

/// How far a write had come when the wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reached {
    /// Whether the primary itself has it where required: always true for [`Reach::Memory`].
    primary: bool,
    replicas: u32,
}

impl Wait {
    /// Waits until everything written before has reached the required replicas or disks, or until
    /// the timeout. Blocks the connection meanwhile. `key` is any key that the server serves.
    ///
    /// # Errors
    /// Fails if the connection breaks, or if the server is no longer the primary or no longer
    /// serves `key`.
    pub(crate) async fn confirm(
        self,
        link: &Link,
        key: &[u8],
    ) -> Result<Option<Short>, RedisError> {
        match self.ask(link, key).await {
            Ok(reached) if reached.primary && reached.replicas >= self.replicas => Ok(None),
            Ok(reached) => Ok(Some(Short::Late { wait: self, reached })),
            Err(Failure::Connection(error)) => Err(error),
            // The keys have moved to another node, together with what was written.
            Err(Failure::Moved(error)) => Err(error.into()),
            Err(failure) => Ok(Some(Short::Refused(failure.into()))),
        }
    }

    async fn ask(self, link: &Link, key: &[u8]) -> Result<Reached, Failure> {
        let mut asked = Pipeline::with_capacity(2);
        asked.add_command(cmd("EVAL").arg(BARRIER).arg(1).arg(key).take());
        asked.add_command(self.question());
        let answers = link.connection.clone().send_packed_commands(&asked, 0, 2).await;
        let answers = answers.map_err(Failure::Connection)?;
        let Ok([barrier, answer]) = <[Value; 2]>::try_from(answers) else {
            return Err(Failure::unexpected("expected two replies to two commands"));
        };
        failure::value(Ok(barrier))?;
        let answer = failure::value(Ok(answer))?;
        self.read(answer).ok_or_else(|| Failure::unexpected("unexpected reply to WAIT or WAITAOF"))
    }

    fn question(self) -> Cmd {
        let mut question = cmd(self.command());
        if self.reach == Reach::Disk {
            question.arg(1);
        }
        let milliseconds = self.timeout.as_nanos().div_ceil(1_000_000);
        question.arg(self.replicas).arg(u64::try_from(milliseconds).unwrap_or(u64::MAX));
        question
    }

    fn read(self, answer: Value) -> Option<Reached> {
        let number = |value: &Value| match value {
            Value::Int(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        match (self.reach, answer) {
            (Reach::Memory, answer) => Some(Reached { primary: true, replicas: number(&answer)? }),
            (Reach::Disk, Value::Array(answer)) => {
                let [local, replicas] = &*answer else { return None };
                Some(Reached { primary: number(local)? > 0, replicas: number(replicas)? })
            }
            (Reach::Disk, _) => None,
        }
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late { wait: Wait { replicas, timeout, .. }, reached } => {
                let local = if reached.primary { "" } else { "not on the primary's disk, and on " };
                let Reached { replicas: reached, .. } = reached;
                write!(
                    f,
                    "write not confirmed in {timeout:?}: {local}{reached} of {replicas} replicas"
                )
            }
            Self::Refused(_) => {
                f.write_str("Redis did not report how far a write has been replicated")
            }
        }
    }
}

impl Error for Short {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(error) => Some(error),
            Self::Late { .. } => None,
        }
    }
}
