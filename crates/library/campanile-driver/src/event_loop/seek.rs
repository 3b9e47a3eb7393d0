//! Seeks: a partition is drained and committed as in a revoke, and is then read under a new assignment
//! that begins at the position.

use std::mem;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::error::ConsumerError;
use crate::event_loop::EventLoop;
use crate::event_loop::commits::FinalCommit;
use crate::event_loop::shutdown::Phase;
use crate::scheduler::DrainId;
use crate::seek::{SeekError, SeekRequest};
use crate::source::{Assignment, SeekTarget, Source};

/// A seek in progress. If it is dropped, the consumer is shutting down.
pub(crate) struct Seek {
    assignment: Arc<Assignment>,
    step: Step,
    reply: oneshot::Sender<Result<i64, SeekError>>,
}

enum Step {
    /// The offset is looked up. The partition is still processed, so a failure changes nothing.
    LookingUp(BoxFuture<'static, Result<SeekTarget, SeekError>>),
    /// No further record is received or started, and records in flight may finish.
    Draining(DrainId, SeekTarget),
    /// The offsets of finished records, or the later position, are committed.
    Committing(FinalCommit, i64),
    /// The source moves its position.
    Moving(i64),
}

impl<S: Source> EventLoop<S> {
    /// Polls the seeks. Returns whether any made progress.
    pub(crate) fn poll_seeks(&mut self, cx: &mut Context<'_>) -> bool {
        let requests = self.scheduler.control().take_seeks();
        if !matches!(self.phase, Phase::Serving) {
            return false;
        }
        requests.into_iter().for_each(|request| self.start_seek(request));
        let mut any = false;
        for mut seek in mem::take(&mut self.seeks) {
            match self.poll_seek(&mut seek, cx) {
                Ok(progress) => {
                    any |= progress;
                    self.seeks.push(seek);
                }
                // The caller may be gone, here and below.
                Err(error) => drop(seek.reply.send(Err(error))),
            }
        }
        any
    }

    fn start_seek(&mut self, SeekRequest { topic, partition, to, reply }: SeekRequest) {
        let is_it = |assignment: &&Arc<Assignment>| {
            assignment.topic == topic
                && assignment.partition == partition
                && !assignment.is_revoked()
        };
        let error = match self.assigned.iter().find(is_it) {
            None => SeekError::NotAssigned,
            Some(_) if self.config.has_sinks => SeekError::Transactional,
            Some(of) if self.seeks.iter().any(|seek| seek.assignment.id == of.id) => {
                SeekError::InProgress
            }
            Some(assignment) => {
                let step = Step::LookingUp(self.source.look_up(assignment, to));
                let assignment = assignment.clone();
                return self.seeks.push(Seek { assignment, step, reply });
            }
        };
        drop(reply.send(Err(error)));
    }

    /// Polls the current step of a seek. Returns whether it has ended.
    fn poll_seek(&mut self, seek: &mut Seek, cx: &mut Context<'_>) -> Result<bool, SeekError> {
        let assignment = &seek.assignment;
        seek.step = match &mut seek.step {
            Step::LookingUp(target) => {
                let Poll::Ready(target) = target.as_mut().poll(cx) else {
                    return Ok(false);
                };
                let target = target?;
                // A paused source delivers nothing more of the partition.
                self.intake.stop(assignment, &mut self.source);
                let partitions = slice::from_ref(assignment);
                let timeout = self.config.revoke_timeout;
                Step::Draining(self.scheduler.on_revoked(partitions, timeout), target)
            }
            Step::Draining(drain, target) => {
                if !self.scheduler.is_drain_finished(*drain) {
                    return Ok(false);
                }
                prepare_commit(assignment, *target);
                Step::Committing(FinalCommit::new(), target.offset)
            }
            Step::Committing(commit, offset) => {
                let (commits, source) = (&mut self.commits, &mut self.source);
                // The last commit of revoked partitions comes first: the group waits for it.
                if self.revoke.is_some()
                    || commit.poll(cx, commits, source, slice::from_ref(assignment)).is_pending()
                {
                    return Ok(false);
                }
                self.source.seek(assignment, *offset);
                Step::Moving(*offset)
            }
            Step::Moving(_) => return Ok(false),
        };
        Ok(true)
    }

    /// Continues with the new assignment of a partition that was moved.
    pub(crate) fn on_sought(&mut self, old: &Arc<Assignment>, new: Arc<Assignment>) {
        self.intake.revoke(slice::from_ref(old));
        self.intake.assign(slice::from_ref(&new));
        self.scheduler.control().reassign(&new);
        self.assigned.retain(|assignment| assignment.id != old.id);
        self.assigned.push(new.clone());
        if let Err(error) = self.scheduler.on_assigned(new) {
            self.stop(Some(ConsumerError::Config(error)));
        }
        // During a shutdown there is no seek any more.
        let sought = self.seeks.extract_if(.., |seek| seek.assignment.id == old.id);
        for Seek { step, reply, .. } in sought {
            if let Step::Moving(offset) = step {
                drop(reply.send(Ok(offset)));
            }
        }
    }

    /// Ends the seeks of revoked partitions. Returns their drains.
    pub(crate) fn abandon_seeks(&mut self, revoked: &[Arc<Assignment>]) -> Vec<DrainId> {
        let is_revoked =
            |seek: &mut Seek| revoked.iter().any(|other| other.id == seek.assignment.id);
        let abandoned = self.seeks.extract_if(.., is_revoked);
        let drains = abandoned.filter_map(|Seek { step, reply, .. }| {
            drop(reply.send(Err(SeekError::NotAssigned)));
            match step {
                Step::Draining(drain, _) => Some(drain),
                _ => None,
            }
        });
        drains.collect()
    }
}

/// Logs the seek of a drained partition. If it goes forward, moves the watermark to the position, so that
/// it is committed, and a restart does not process the skipped records. If it goes backward, the group's
/// offset follows once a record from there on is finished.
fn prepare_commit(assignment: &Assignment, SeekTarget { offset, committed }: SeekTarget) {
    let (topic, partition) = (&*assignment.topic, assignment.partition);
    let from = assignment.watermark().unwrap_or(committed);
    // The position may be one of another leader.
    assignment.set_leader_epoch(None);
    if offset > from {
        assignment.advance(offset);
        tracing::warn!(
            topic,
            partition,
            from,
            to = offset,
            "partition sought forward: unfinished records before the position are skipped, and the \
             position is committed"
        );
    } else {
        tracing::info!(topic, partition, from, to = offset, "partition sought");
    }
}
