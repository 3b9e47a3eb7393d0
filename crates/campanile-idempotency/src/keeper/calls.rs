//! Calls to the store.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command};
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, BoxFuture};
use smallvec::{SmallVec, smallvec};
use tracing::{Instrument, Span};

use super::slot::What;
use crate::store::{Store, StoreError};

/// The longest that a call may take, whatever the store promises: else a few that hang would stop all.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);

/// The same for a call about a lock of this time to live. One that is lost must leave time for the
/// next before the lock ends, and not only a renewal: behind a completion that hangs, the handler
/// would run again elsewhere.
pub(super) fn call_limit(ttl: Duration) -> Duration {
    CALL_LIMIT.min(ttl / 6)
}

/// Warns of a store whose calls may take longer than the keeper waits for them.
pub(super) fn warn_of_longer(longest: Option<Duration>, limit: Duration) {
    if let Some(longest) = longest.filter(|longest| *longest > limit) {
        tracing::warn!(
            ?longest,
            ?limit,
            "a call of the store may take longer than the lock keeper waits for it, and its answer \
             would be lost: shorten the store's time-out (`RedisConfig::with_command_timeout`), or \
             lengthen the lock's time to live, a sixth of which a call may take, and at most 5 s"
        );
    }
}

/// Names a call. Never used twice, so a late answer is not taken for another call's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallId(pub(super) u64);

/// A call that has begun.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: CallId,
    pub(super) queue: QueueName,
    pub(super) stage: Stage,
    /// When it is given up, by the keeper's clock.
    pub(super) limit: Duration,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Its task will take commands when it is next polled.
    Gathering { since: Duration },
    /// It has its commands.
    InFlight { sent: SmallVec<[Sent; 1]>, abort: Option<AbortHandle> },
}

/// A queue of commands. No call takes from two: a renewal must not wait for another command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueName {
    /// Called on the runtimes of those who want the answers.
    Callers,
    /// Called in the background: repeats, and what a caller's runtime has not sent.
    Background,
    /// Called in the background.
    Renewals,
}

/// A command that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) slot: usize,
    pub(super) what: What,
    /// Before it was sent, by the keeper's clock.
    pub(super) at: Duration,
}

/// The commands of a call.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) id: CallId,
    pub(super) queue: QueueName,
    pub(super) commands: SmallVec<[Command; 1]>,
}

/// The answers to a call, one for each command; or why there are none.
pub(super) type Answers = Result<SmallVec<[Result<Answer, StoreError>; 1]>, &'static str>;

/// A [`Store`] as the keeper calls it.
pub(super) trait Callable: Send + Sync {
    /// The future sends the commands together. It never panics.
    fn call(self: Arc<Self>, batch: Batch) -> BoxFuture<'static, Answers>;
}

impl<S: Store> Callable for S {
    fn call(self: Arc<Self>, batch: Batch) -> BoxFuture<'static, Answers> {
        let Batch { queue, mut commands, .. } = batch;
        let count = commands.len();
        // The other steps have a span each in their own request's.
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
            // A store that panics must not take the locks of all others with it.
            match AssertUnwindSafe(call).catch_unwind().await {
                Ok(answers) if answers.len() == count => Ok(answers),
                // Which answer belongs to which command is not known then, and a lock must not be
                // taken for another's.
                Ok(_) => Err("the store did not give one answer for each command"),
                Err(_) => Err("the store panicked"),
            }
        }
        .instrument(span)
        .boxed()
    }
}
