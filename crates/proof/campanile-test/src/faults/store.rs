use std::fmt;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{Answer, Command};
use campanile_idempotency::{Store, StoreError};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::rules::Rules;
use super::{Call, Fault};

type Answers = Vec<Result<Answer, StoreError>>;

/// A store that forwards to an inner store, except for the faults that a test injects. It records
/// all calls. Clones share one store.
pub struct FaultyStore<S>(Arc<Inner<S>>);

struct Inner<S> {
    store: S,
    state: Mutex<State>,
    /// Notified when the calls that hang should resume. They resume in the order in which they began.
    release: Notify,
}

#[derive(Default)]
struct State {
    rules: Rules,
    calls: Vec<Call>,
    /// Number of calls that were dropped from `calls`.
    forgotten: usize,
}

impl<S: Store> FaultyStore<S> {
    /// Wraps a store, without faults at first.
    pub fn new(store: S) -> Self {
        Self(Arc::new(Inner { store, state: Mutex::default(), release: Notify::new() }))
    }

    /// The inner store.
    pub fn inner(&self) -> &S {
        &self.0.store
    }

    /// Injects this fault into the next call that has no fault assigned yet.
    pub fn inject_next(&self, fault: Fault) {
        self.state().rules.once(None, fault);
    }

    /// Injects this fault into the next call with such a command (`acquire`, `renew`, and so on).
    pub fn inject_next_of(&self, operation: &str, fault: Fault) {
        self.state().rules.once(Some(operation), fault);
    }

    /// Injects this fault into the n-th call from now on. The next call is the first.
    pub fn inject_nth(&self, n: usize, fault: Fault) {
        self.state().rules.nth(n.saturating_sub(1), fault);
    }

    /// Injects this fault into all calls from now on, until [`heal`](Self::heal).
    ///
    /// The lock keeper repeats the last command of a lock until it is answered. So a request whose handler
    /// has ended waits until the store is healed; under paused time, a test that never heals it never
    /// ends, because the time between the repetitions passes at once.
    pub fn inject_always(&self, fault: Fault) {
        self.state().rules.lasting(None, fault);
    }

    /// Injects this fault into all calls with such a command from now on.
    pub fn inject_always_of(&self, operation: &str, fault: Fault) {
        self.state().rules.lasting(Some(operation), fault);
    }

    /// Injects one of these faults into each call from now on, with the given probabilities, as
    /// drawn from the seed.
    pub fn inject_randomly(&self, seed: u64, odds: impl Into<Vec<(f64, Fault)>>) {
        self.state().rules.random(seed, odds.into());
    }

    /// Removes all faults, and resumes the calls that hang.
    pub fn heal(&self) {
        self.state().rules = Rules::default();
        self.release();
    }

    /// Resumes the calls that hang now.
    pub fn release(&self) {
        self.0.release.notify_waiters();
    }

    /// All calls so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// All commands so far, in order.
    pub fn commands(&self) -> Vec<Command> {
        let state = self.state();
        state.calls.iter().flat_map(|call| call.commands.clone()).collect()
    }

    /// Counts how many commands had this name so far, such as `acquire` or `renew`.
    pub fn count(&self, operation: &str) -> usize {
        let state = self.state();
        state.calls.iter().map(|call| call.count(operation)).sum()
    }

    /// Drops the record of the calls so far.
    pub fn forget_calls(&self) {
        let mut state = self.state();
        state.forgotten += state.calls.len();
        state.calls.clear();
    }

    async fn call(&self, commands: Vec<Command>) -> Answers {
        let (number, fault) = self.record_call(&commands);
        let mut released = pin!(self.0.release.notified());
        match fault {
            // `resume_unwind` skips the panic hook, because its message would only distract.
            Some(Fault::Panic) => resume_unwind(Box::new("injected panic of the store")),
            Some(Fault::Refuse) => return unavailable_answers(commands.len(), "refused"),
            Some(Fault::Hang) => released.as_mut().await,
            _ => {}
        }
        let mut answers = self.apply(commands).await;
        self.record_answers(number, &answers);
        match fault {
            Some(Fault::LoseReply) => return unavailable_answers(answers.len(), "reply lost"),
            Some(Fault::HangReply) => released.await,
            Some(Fault::Slow(time)) => sleep(time).await,
            Some(Fault::FewerAnswers) if answers.len() > 1 => drop(answers.remove(0)),
            Some(Fault::MoreAnswers) if answers.len() > 1 => {
                answers.extend(answers.last().cloned())
            }
            _ => {}
        }
        answers
    }

    async fn apply(&self, mut commands: Vec<Command>) -> Answers {
        if let [_] = commands[..] {
            vec![self.0.store.apply(commands.remove(0)).await]
        } else {
            self.0.store.apply_batch(commands).await
        }
    }

    fn record_call(&self, commands: &[Command]) -> (usize, Option<Fault>) {
        let mut state = self.state();
        let fault = state.rules.select(commands);
        state.calls.push(Call {
            at: Instant::now(),
            commands: commands.to_vec(),
            fault,
            answers: Vec::new(),
        });
        (state.forgotten + state.calls.len() - 1, fault)
    }

    fn record_answers(&self, number: usize, answers: &Answers) {
        let mut state = self.state();
        let index = number.checked_sub(state.forgotten);
        if let Some(call) = index.and_then(|index| state.calls.get_mut(index)) {
            call.answers = answers.iter().flatten().cloned().collect();
        }
    }
}

impl<S> FaultyStore<S> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Store for FaultyStore<S> {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let answer = self.call(vec![command]).await.pop();
        answer.expect("a single command has one answer with every fault")
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Answers {
        self.call(batch).await
    }

    /// At least the trait's default, even around a `MemoryStore`, because this store stands in for
    /// a store behind a network.
    fn max_batch(&self) -> NonZeroUsize {
        const DEFAULT_MAX_BATCH: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
        self.0.store.max_batch().max(DEFAULT_MAX_BATCH)
    }

    fn max_call_duration(&self) -> Option<Duration> {
        self.0.store.max_call_duration()
    }
}

impl<S> Clone for FaultyStore<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> fmt::Debug for FaultyStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("rules", &self.state().rules).finish_non_exhaustive()
    }
}

fn unavailable_answers(commands: usize, how: &'static str) -> Answers {
    (0..commands).map(|_| Err(StoreError::unavailable(how))).collect()
}
