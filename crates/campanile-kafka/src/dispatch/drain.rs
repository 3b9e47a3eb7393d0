//! Before partitions are given away: what is at work may end, and the rest is let go.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::Record;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::{Instant, Sleep};

use crate::intake::Done;
use crate::slot::SlotId;
use crate::task::Task;

/// How long it may take until futures that were dropped have told the store, and the store has
/// answered: then the next owner finds the locks free. It is a courtesy, so a store that is down
/// holds nobody up for longer.
pub(crate) const LET_GO: Duration = Duration::from_secs(1);

/// Some lanes that begin nothing more.
pub(super) struct Drain {
    /// Those that are not over yet.
    pub(super) lanes: Vec<SlotId>,
    phase: Phase,
    /// Dropped at the end: who waits for that goes on.
    _done: Option<Done>,
}

enum Phase {
    /// Records at work may end until then.
    Finishing(Pin<Box<Sleep>>),
    /// They were dropped, and let go of their locks.
    LettingGo(BoxFuture<'static, ()>),
}

impl Drain {
    pub(super) fn new(lanes: Vec<SlotId>, timeout: Duration, done: Option<Done>) -> Self {
        let sleep = Box::pin(tokio::time::sleep(timeout));
        Self { lanes, phase: Phase::Finishing(sleep), _done: done }
    }

    /// Whether it has to be over by now, with records still at work.
    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.phase {
            Phase::Finishing(sleep) => sleep.as_mut().poll(cx),
            Phase::LettingGo(_) => Poll::Pending,
        }
    }

    /// Its time is up.
    pub(super) fn hurry(&mut self) {
        if let Phase::Finishing(sleep) = &mut self.phase {
            sleep.as_mut().reset(Instant::now());
        }
    }

    /// Drops these, each with its record.
    pub(super) fn let_go(&mut self, tasks: Vec<(Task<()>, Record)>) {
        let each = tasks.into_iter().map(|(task, record)| async move {
            task.cancel().await;
            record.let_go().await;
        });
        let all = join_all(each);
        self.phase = Phase::LettingGo(Box::pin(async move {
            if tokio::time::timeout(LET_GO, all).await.is_err() {
                tracing::warn!("not all locks were let go in time; they expire by themselves");
            }
        }));
    }

    /// Whether it is over.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.phase {
            Phase::Finishing(_) if self.lanes.is_empty() => Poll::Ready(()),
            Phase::Finishing(_) => Poll::Pending,
            Phase::LettingGo(all) => all.as_mut().poll(cx),
        }
    }
}
