//! One delivery of a request to the stack, which can be halted at each await.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::{BoxError, Operation, Reply};
use campanile_idempotency::MemoryStore;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use super::point;
use crate::faults::FaultyStore;

/// The answer of a stack.
pub(super) type Answer = Result<Finished, BoxError>;

/// How a record is finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finished {
    Completed,
    /// With the reason.
    GivenUp(String),
}

/// What the stack does at an await.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Acquiring,
    Running,
    Settling,
}

/// An await of a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Await {
    pub(super) phase: Phase,
    /// The number in its phase, starting at 1.
    number: usize,
    point: Option<&'static str>,
}

/// How far a delivery got.
pub(super) enum Progress {
    Answered(Answer),
    /// The stack has been woken from this await, and was not polled again.
    Halted(Await),
}

/// The command with which a stack acquires the lock of a record.
pub(super) struct Acquire {
    /// How long the lock lives without a renewal.
    pub(super) ttl: Duration,
    pub(super) max_attempts: u16,
    /// The key of the record, unless the layer does not store keys.
    pub(super) key: Option<String>,
}

/// A future of a stack. It can be polled again after it has halted.
pub(super) struct Delivery {
    future: LocalBoxFuture<'static, Answer>,
    store: FaultyStore<MemoryStore>,
    /// The number of the await at which to halt, starting at 1.
    pub(super) halt_at: Option<usize>,
    /// The awaits so far.
    pub(super) awaits: Vec<Await>,
    /// The await in which the stack is now: whether it had a lock then, and the point's name.
    waiting: Option<(bool, Option<&'static str>)>,
}

impl Delivery {
    /// Begins a delivery to a stack over this store.
    pub(super) fn new(
        future: LocalBoxFuture<'static, Answer>,
        store: FaultyStore<MemoryStore>,
    ) -> Self {
        store.forget_calls();
        Self { future, store, halt_at: None, awaits: Vec::new(), waiting: None }
    }

    /// Whether the lock was granted, so that the handler may have run.
    pub(super) fn is_granted(&self) -> bool {
        self.is_answered(|reply| matches!(reply, Reply::Acquired { .. }))
    }

    /// Whether no attempt was left, so that the handler did not run.
    pub(super) fn is_exhausted(&self) -> bool {
        self.is_answered(|reply| matches!(reply, Reply::Exhausted { .. }))
    }

    fn is_answered(&self, is_wanted: impl Fn(&Reply) -> bool) -> bool {
        let calls = self.store.calls();
        calls.iter().flat_map(|call| &call.answers).any(|answer| is_wanted(&answer.reply))
    }

    /// What the stack has asked for with its lock. `None` if it has not asked for a lock.
    pub(super) fn acquire(&self) -> Option<Acquire> {
        self.store.commands().into_iter().find_map(|command| match command.operation {
            Operation::Acquire { ttl, max_attempts, details, .. } => {
                let key = details.as_ref().and_then(|details| details.key());
                let key = key.map(|key| String::from_utf8_lossy(key).into_owned());
                Some(Acquire { ttl, max_attempts, key })
            }
            _ => None,
        })
    }

    /// Names the await from which the stack was woken.
    fn woken(&self, was_granted: bool, point: Option<&'static str>) -> Await {
        let is_settling =
            ["complete", "fail", "release"].iter().any(|name| self.store.count(name) > 0);
        let phase = match was_granted {
            false => Phase::Acquiring,
            true if is_settling => Phase::Settling,
            true => Phase::Running,
        };
        let number = self.awaits.iter().filter(|it| it.phase == phase).count() + 1;
        Await { phase, number, point }
    }
}

impl Future for Delivery {
    type Output = Progress;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Progress> {
        let this = self.get_mut();
        if let Some((was_granted, point)) = this.waiting.take() {
            let woken = this.woken(was_granted, point);
            this.awaits.push(woken);
            if this.halt_at == Some(this.awaits.len()) {
                return Poll::Ready(Progress::Halted(woken));
            }
        }
        point::take_last();
        match this.future.poll_unpin(cx) {
            Poll::Ready(answer) => Poll::Ready(Progress::Answered(answer)),
            Poll::Pending => {
                this.waiting = Some((this.is_granted(), point::take_last()));
                Poll::Pending
            }
        }
    }
}

impl Await {
    /// Describes the await.
    pub(super) fn describe(&self, attempt: usize) -> String {
        match (self.phase, self.point) {
            (Phase::Acquiring, _) => format!("before the handler of attempt {attempt}"),
            (Phase::Settling, _) => format!("after the handler of attempt {attempt}"),
            (Phase::Running, None) => format!("at await {} of attempt {attempt}", self.number),
            (Phase::Running, Some(name)) => {
                format!("at await {} of attempt {attempt} ({name})", self.number)
            }
        }
    }
}
