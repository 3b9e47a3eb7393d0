//! The end of serving: drains all partitions, commits, and leaves the group.

use std::pin::Pin;
use std::task::Context;

use tokio::time::{Sleep, sleep};

use crate::control::Shutdown;
use crate::error::ConsumerError;
use crate::event_loop::commits::FinalCommit;
use crate::event_loop::{EventLoop, LEAVE_TIMEOUT};
use crate::source::Source;
use crate::status::ConsumerStage;

/// How far the consumer has come in serving and shutting down.
pub(crate) enum Phase {
    Serving,
    /// No further record is started, and records in flight may finish.
    Draining,
    /// The offsets of finished records are committed.
    Committing(FinalCommit),
    /// The source leaves its group, until this deadline at the latest.
    Closing(Pin<Box<Sleep>>),
    Closed,
}

impl<S: Source> EventLoop<S> {
    /// Takes a requested shutdown, if there is one.
    pub(crate) fn poll_shutdown(&mut self) -> bool {
        let Some(how) = self.scheduler.control().take_shutdown() else {
            return false;
        };
        self.stop(None);
        if how == Shutdown::Now {
            self.scheduler.expire_drains();
        }
        true
    }

    /// Begins to drain all partitions: no further record is started. `run` returns the first error.
    pub(crate) fn stop(&mut self, error: Option<ConsumerError>) {
        if let Some(error) = error {
            self.error.get_or_insert(error);
        }
        if matches!(self.phase, Phase::Serving) {
            self.phase = Phase::Draining;
            self.seeks.clear();
            // The stage changes only after the scheduler has stopped, so no record is started in it.
            self.scheduler.stop(self.config.drain_timeout);
            self.scheduler.status().enter_stage(ConsumerStage::Draining);
        }
    }

    /// Polls the steps of the shutdown. Returns whether one has ended.
    pub(crate) fn poll_phase(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.phase {
            Phase::Draining if self.scheduler.is_drained() && self.revoke.is_none() => {
                self.scheduler.status().enter_stage(ConsumerStage::Closing);
                self.phase = Phase::Committing(FinalCommit::new());
                true
            }
            Phase::Committing(commit) => {
                let (commits, source) = (&mut self.commits, &mut self.source);
                if commit.poll(cx, commits, source, &self.assigned).is_pending() {
                    return false;
                }
                self.assigned.iter().for_each(|assignment| assignment.close());
                self.scheduler.control().report_released(&self.assigned, false);
                self.source.close();
                self.phase = Phase::Closing(Box::pin(sleep(LEAVE_TIMEOUT)));
                true
            }
            Phase::Closing(deadline) => {
                let timed_out = deadline.as_mut().poll(cx).is_ready();
                if timed_out {
                    tracing::warn!("timed out leaving the group");
                    self.phase = Phase::Closed;
                }
                timed_out
            }
            _ => false,
        }
    }
}
