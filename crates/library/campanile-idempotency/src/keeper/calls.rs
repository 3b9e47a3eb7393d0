//! Calls to the store.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command};
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, BoxFuture};
use smallvec::{SmallVec, smallvec};
use tracing::{Instrument, Span};

use super::slot::CommandKind;
use crate::store::{Store, StoreError};

/// The maximum duration of a call, whatever the store promises: otherwise a few calls that hang
/// would block all others.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// After a lost call, there must be time for the next one before the lock expires. This applies to
/// all commands and not only to renewals: if a completion hung until then, the handler would run
/// again elsewhere.
pub(super) fn call_timeout(ttl: Duration) -> Duration {
    CALL_TIMEOUT.min(ttl / 6)
}

/// Logs a warning if the store's calls may take longer than the keeper waits for them.
pub(super) fn warn_if_calls_long(longest: Option<Duration>, limit: Duration) {
    if let Some(longest) = longest.filter(|longest| *longest > limit) {
        tracing::warn!(
            ?longest,
            ?limit,
            "store calls may take longer than the lock keeper waits for them, and late answers are \
             lost; shorten the store's timeout (`RedisConfig::with_command_timeout`) or lengthen \
             the lock TTL (the limit of a call is a sixth of the TTL, at most 5 s)"
        );
    }
}

/// Identifies a call. Never reused, so that a late answer is not mistaken for that of another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallId(pub(super) u64);

/// A call that has started.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: CallId,
    pub(super) queue: QueueName,
    pub(super) stage: Stage,
    /// When the call is aborted, by the keeper's clock.
    pub(super) deadline: Duration,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The task of the call will take commands when it is polled next.
    Gathering { started_at: Duration },
    /// The call has taken its commands.
    InFlight { sent: SmallVec<[Sent; 1]>, abort: Option<AbortHandle> },
}

/// A queue of commands. A call takes commands from one queue only, because a renewal must not wait
/// for other commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueName {
    /// Called on the runtimes of the callers.
    Callers,
    /// Called in the background: repeated commands, and commands that a caller's runtime has not
    /// sent.
    Background,
    /// Called in the background.
    Renewals,
}

/// A command that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) slot: usize,
    pub(super) kind: CommandKind,
    /// The time before the command was sent, by the keeper's clock.
    pub(super) at: Duration,
}

/// The commands of a call.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) id: CallId,
    pub(super) queue: QueueName,
    pub(super) commands: SmallVec<[Command; 1]>,
}

/// The answers to a call, one per command, or the reason why there are none.
pub(super) type Answers = Result<SmallVec<[Result<Answer, StoreError>; 1]>, &'static str>;

/// A [`Store`] as the keeper calls it.
pub(super) trait Callable: Send + Sync {
    /// Sends the commands together. The future never panics.
    fn call(self: Arc<Self>, batch: Batch) -> BoxFuture<'static, Answers>;
}

impl<S: Store> Callable for S {
    fn call(self: Arc<Self>, batch: Batch) -> BoxFuture<'static, Answers> {
        let Batch { queue, mut commands, .. } = batch;
        let count = commands.len();
        // The other commands have a span within that of their request.
        let span = match queue {
            QueueName::Renewals => tracing::debug_span!("renew", locks = count),
            QueueName::Callers | QueueName::Background => Span::none(),
        };
        let call = async move {
            match commands.pop() {
                Some(command) if count == 1 => smallvec![self.apply(command).await],
                last => {
                    commands.extend(last);
                    self.apply_batch(commands.into_vec()).await.into()
                }
            }
        };
        async move {
            // A panic of the store must not affect all other locks.
            match AssertUnwindSafe(call).catch_unwind().await {
                Ok(answers) if answers.len() == count => Ok(answers),
                // It is unknown which answer belongs to which command, and a lock must not get the
                // answer of another.
                Ok(_) => Err("the store returned a wrong number of answers"),
                Err(_) => Err("the store panicked"),
            }
        }
        .instrument(span)
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{IdempotencyKey, Namespace, Operation, Owner, Retention, StoreKey};
    use futures_util::FutureExt;

    use super::*;
    use crate::MemoryStore;

    /// A store without batches.
    #[derive(Clone)]
    struct Single(MemoryStore);

    impl Store for Single {
        async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
            self.0.apply(command).await
        }

        async fn apply_batch(&self, _: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
            panic!("not a batch");
        }
    }

    #[test]
    fn single_command_is_no_batch() {
        let key = IdempotencyKey::new("p-1").unwrap();
        let key = StoreKey::new(Namespace::try_from("n").unwrap(), &key);
        let operation = Operation::Cancel { owner: Owner::new(1).unwrap() };
        let commands = smallvec![Command { key, operation, retention: Retention::default() }];
        let batch = Batch { id: CallId(0), queue: QueueName::Callers, commands };
        let answers = Arc::new(Single(MemoryStore::new())).call(batch).now_or_never().unwrap();
        assert!(matches!(&answers.unwrap()[..], [Ok(_)]));
    }
}
