//! Steps that a handler waits to have recorded.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{Grant, Operation};
use tokio::sync::oneshot;

use super::calls::call_timeout;
use crate::store::StoreError;

/// A step that has run and is not recorded yet.
#[derive(Debug)]
pub(crate) struct PendingStep {
    name: Box<str>,
    result: Bytes,
    pub(super) reply: oneshot::Sender<StepResult>,
    pub(super) tries: u32,
    /// When to send the command.
    pub(super) send_at: Duration,
    /// When the step had run.
    ran_at: Duration,
}

/// The longest delay between two tries to record a step.
pub(super) fn longest_delay(ttl: Duration) -> Duration {
    ttl / 24
}

/// Whether a step is recorded. If the sender is dropped, the attempt has ended.
pub(crate) type StepResult = Result<(), RecordError>;

/// The reason why a step is not recorded.
#[derive(Debug)]
pub(crate) enum RecordError {
    /// The entry belongs to another grant, or this grant has ended.
    Lost,
    TooLarge,
    Store(StoreError),
}

impl PendingStep {
    pub(super) fn new(
        name: Box<str>,
        result: Bytes,
        reply: oneshot::Sender<StepResult>,
        now: Duration,
    ) -> Self {
        Self { name, result, reply, tries: 0, send_at: now, ran_at: now }
    }

    /// Whether there is time for another try. If it fails, the lock is still held, so that the handler has
    /// time to react.
    pub(super) fn has_time(&self, now: Duration, ttl: Duration, deadline: Duration) -> bool {
        now < self.ran_at + ttl / 2 && now + longest_delay(ttl) + call_timeout(ttl) < deadline
    }

    pub(super) fn operation(&self, grant: Grant) -> Operation {
        Operation::RecordStep { grant, name: self.name.clone(), result: self.result.clone() }
    }
}

/// The steps of a lock, which are recorded one after another. Usually there are none, or one.
#[derive(Debug, Default)]
pub(super) struct PendingSteps(VecDeque<PendingStep>);

impl PendingSteps {
    pub(super) fn push(&mut self, step: PendingStep) {
        self.0.push_back(step);
    }

    pub(super) fn front(&self) -> Option<&PendingStep> {
        self.0.front()
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut PendingStep> {
        self.0.front_mut()
    }

    pub(super) fn pop(&mut self) -> Option<PendingStep> {
        self.0.pop_front()
    }

    pub(super) fn pop_if(
        &mut self,
        condition: impl FnOnce(&PendingStep) -> bool,
    ) -> Option<PendingStep> {
        if self.front().is_some_and(condition) { self.pop() } else { None }
    }

    /// Takes the steps, if there are any.
    pub(super) fn take(&mut self) -> Option<Self> {
        (!self.0.is_empty()).then(|| std::mem::take(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_steps_are_all_that_there_were() {
        let mut steps = PendingSteps::default();
        assert!(steps.take().is_none());
        for name in ["charge", "ship"] {
            let now = Duration::ZERO;
            steps.push(PendingStep::new(name.into(), Bytes::new(), oneshot::channel().0, now));
        }
        let mut taken = steps.take().expect("two steps");
        assert_eq!(
            [taken.pop().unwrap().name, taken.pop().unwrap().name],
            ["charge", "ship"].map(Box::from)
        );
        assert!(steps.take().is_none());
    }

    #[test]
    fn time_for_a_try_ends_with_half_the_ttl_and_before_the_deadline() {
        let (ttl, now) = (Duration::from_secs(30), Duration::from_secs(1000));
        let nano = Duration::from_nanos(1);
        let step = PendingStep::new("charge".into(), Bytes::new(), oneshot::channel().0, now);
        let end = now + ttl / 2;
        assert!(step.has_time(end - nano, ttl, Duration::MAX));
        assert!(!step.has_time(end, ttl, Duration::MAX));
        let needed = longest_delay(ttl) + call_timeout(ttl);
        assert!(step.has_time(now, ttl, now + needed + nano));
        assert!(!step.has_time(now, ttl, now + needed));
    }
}
