use std::fmt;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{Answer, Command};
use campanile_idempotency::{Store, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::rules::Rules;
use super::{Call, Fault};

type Answers = Vec<Result<Answer, StoreError>>;

/// A store that does what the one inside does, but for the faults that it was told to have. It keeps
/// a record of all calls. Clones are the same store.
pub struct FaultyStore<S>(Arc<Inner<S>>);

struct Inner<S> {
    store: S,
    state: Mutex<State>,
    /// Sent to when those that hang are to go on.
    release: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    rules: Rules,
    calls: Vec<Call>,
    /// How many calls there were before those.
    forgotten: usize,
}

impl<S: Store> FaultyStore<S> {
    /// This store, without a fault so far.
    pub fn new(store: S) -> Self {
        Self(Arc::new(Inner { store, state: Mutex::default(), release: watch::Sender::new(()) }))
    }

    /// The store inside.
    pub fn inner(&self) -> &S {
        &self.0.store
    }

    /// The next call for which nothing else was asked before has this fault.
    pub fn next(&self, fault: Fault) {
        self.state().rules.once(None, fault);
    }

    /// The next call with such a command (`acquire`, `renew`, and so on) has this fault.
    pub fn next_of(&self, operation: &str, fault: Fault) {
        self.state().rules.once(Some(operation), fault);
    }

    /// From now on all calls have this fault.
    pub fn always(&self, fault: Fault) {
        self.state().rules.lasting(None, fault);
    }

    /// From now on all calls with such a command have this fault.
    pub fn always_of(&self, operation: &str, fault: Fault) {
        self.state().rules.lasting(Some(operation), fault);
    }

    /// From now on each call has one of these faults with its probability, as the seed decides.
    pub fn at_random(&self, seed: u64, odds: impl Into<Vec<(f64, Fault)>>) {
        self.state().rules.chance(seed, odds.into());
    }

    /// Has no faults from now on, and lets those go on that hang.
    pub fn heal(&self) {
        self.state().rules = Rules::default();
        self.release();
    }

    /// Lets those go on that hang now.
    pub fn release(&self) {
        self.0.release.send_replace(());
    }

    /// All calls so far, in their order.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// All commands so far, in their order.
    pub fn commands(&self) -> Vec<Command> {
        let state = self.state();
        state.calls.iter().flat_map(|call| call.commands.clone()).collect()
    }

    /// How many commands with this word there were: `acquire`, `renew`, and so on.
    pub fn count(&self, operation: &str) -> usize {
        let state = self.state();
        state.calls.iter().map(|call| call.count(operation)).sum()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        let mut state = self.state();
        state.forgotten += state.calls.len();
        state.calls.clear();
    }

    async fn call(&self, commands: Vec<Command>) -> Answers {
        let (number, fault) = self.note(&commands);
        let mut released = self.0.release.subscribe();
        match fault {
            // Without the message of a panic, which nobody has to look into.
            Some(Fault::Panic) => resume_unwind(Box::new("a store that panics, as it was told to")),
            Some(Fault::Refuse) => return failed(commands.len(), "refused"),
            // The sender is in `self`, so this ends with a release.
            Some(Fault::Hang) => drop(released.changed().await),
            _ => {}
        }
        let mut answers = self.apply(commands).await;
        self.note_answers(number, &answers);
        match fault {
            Some(Fault::LoseReply) => return failed(answers.len(), "the reply was lost"),
            Some(Fault::HangReply) => drop(released.changed().await),
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

    fn note(&self, commands: &[Command]) -> (usize, Option<Fault>) {
        let mut state = self.state();
        let fault = state.rules.judge(commands);
        state.calls.push(Call {
            at: Instant::now(),
            commands: commands.to_vec(),
            fault,
            answers: Vec::new(),
        });
        (state.forgotten + state.calls.len() - 1, fault)
    }

    fn note_answers(&self, number: usize, answers: &Answers) {
        let mut state = self.state();
        let place = number.checked_sub(state.forgotten);
        if let Some(call) = place.and_then(|place| state.calls.get_mut(place)) {
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
        answer.expect("a single command has one answer whatever the fault")
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Answers {
        self.call(batch).await
    }

    /// The default, also around a `MemoryStore`: it stands for a store behind a network.
    fn max_batch(&self) -> NonZeroUsize {
        const MOST: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
        self.0.store.max_batch().max(MOST)
    }

    fn longest_call(&self) -> Option<Duration> {
        self.0.store.longest_call()
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

fn failed(commands: usize, how: &'static str) -> Answers {
    (0..commands).map(|_| Err(StoreError::unavailable(how))).collect()
}
