//! The calls to the store.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command};
use futures_util::future::{AbortHandle, Aborted, BoxFuture, abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use slab::Slab;
use tracing::{Instrument, Span};

use super::slot::What;
use crate::store::{Store, StoreError};

/// No call takes longer, whatever the store promises: else a few that hang would stop all.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);

/// The same for a call about a lock of this time to live. One that is lost must leave time for the
/// next before the lock ends, and not only a renewal: behind a completion that hangs, the handler
/// would run again elsewhere.
pub(super) fn call_limit(ttl: Duration) -> Duration {
    CALL_LIMIT.min(ttl / 6)
}

/// Warns of a store that may take longer than it is waited for.
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

/// The calls that are in flight.
pub(super) struct Calls<S> {
    store: Arc<S>,
    in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Of each in flight. The keeper has one timer for all: one of the runtime for each call would cost
    /// more than the call itself.
    limits: Slab<Limit>,
}

/// How long a call is waited for.
struct Limit {
    /// By the keeper's clock; `None`, once it is given up.
    at: Option<Duration>,
    call: AbortHandle,
}

/// A command that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) slot: usize,
    pub(super) what: What,
    /// By the keeper's clock, before it was sent.
    pub(super) at: Duration,
}

/// A call that was answered, or failed.
pub(super) struct Done {
    limit: usize,
    pub(super) lane: Lane,
    pub(super) sent: Vec<Sent>,
    pub(super) answers: Vec<Result<Answer, StoreError>>,
}

/// Renewals have calls of their own, so that no other call can hold them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Commands,
    Renewals,
}

impl<S: Store> Calls<S> {
    pub(super) fn new(store: S) -> Self {
        Self { store: Arc::new(store), in_flight: FuturesUnordered::new(), limits: Slab::new() }
    }

    /// As many commands as one call should have.
    pub(super) fn max_batch(&self) -> usize {
        self.store.max_batch().get()
    }

    /// Sends these commands together, and waits for their answers until `limit`, by the keeper's clock.
    pub(super) fn send(
        &mut self,
        lane: Lane,
        sent: Vec<Sent>,
        mut commands: Vec<Command>,
        limit: Duration,
    ) {
        let store = self.store.clone();
        let call = async move {
            match (commands.pop(), commands.is_empty()) {
                (Some(command), true) => vec![store.apply(command).await],
                (Some(command), false) => {
                    commands.push(command);
                    store.apply_batch(commands).await
                }
                (None, _) => Vec::new(),
            }
        };
        // A store that panics must not take the locks of all others with it.
        let (call, handle) = abortable(AssertUnwindSafe(call).catch_unwind());
        let limit = self.limits.insert(Limit { at: Some(limit), call: handle });
        // The other steps have a span each in their own request's.
        let span = match lane {
            Lane::Renewals => tracing::debug_span!("renew", locks = sent.len()),
            Lane::Commands => Span::none(),
        };
        self.in_flight.push(
            async move {
                let answers = match call.await {
                    Ok(Ok(answers)) if answers.len() == sent.len() => Ok(answers),
                    // Which answer belongs to which command is not known then, and a lock must not
                    // be taken for another's.
                    Ok(Ok(_)) => Err("the store did not give one answer for each command"),
                    Ok(Err(_)) => Err("the store panicked"),
                    Err(Aborted) => Err("the call took longer than the keeper waits"),
                };
                let answers =
                    answers.unwrap_or_else(|why| vec![Err(StoreError::timeout(why)); sent.len()]);
                Done { limit, lane, sent, answers }
            }
            .instrument(span)
            .boxed(),
        );
    }

    /// When the next call is to be given up.
    pub(super) fn next_limit(&self) -> Option<Duration> {
        self.limits.iter().filter_map(|(_, limit)| limit.at).min()
    }

    /// Gives up what has taken too long; each of these is then answered so.
    pub(super) fn give_up(&mut self, now: Duration) {
        for (_, limit) in &mut self.limits {
            if limit.at.take_if(|at| *at <= now).is_some() {
                limit.call.abort();
            }
        }
    }

    /// The next call that is answered; pending while there is none.
    pub(super) async fn next(&mut self) -> Done {
        match self.in_flight.next().await {
            Some(done) => self.ended(done),
            None => std::future::pending().await,
        }
    }

    /// The next one, if it is answered already.
    pub(super) fn next_now(&mut self) -> Option<Done> {
        let done = self.in_flight.next().now_or_never().flatten()?;
        Some(self.ended(done))
    }

    fn ended(&mut self, done: Done) -> Done {
        self.limits.remove(done.limit);
        done
    }
}
