//! Where to start in partitions that are newly assigned.
//!
//! librdkafka (2.12) finds that by itself, and is wrong where it matters: a committed offset that
//! waits for an open transaction is asked for again, but if the assignment changes in the meantime, the
//! partition is started as if nothing were committed, at `auto.offset.reset`. With `earliest` that
//! repeats outputs, and with `latest` it loses records. So the offsets are fetched here, until the brokers
//! say what is committed, and the source seeks to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::group::Group;
use super::trouble;
use super::worker::{CALL, PAUSE};
use crate::driver::Assignment;
use crate::error::ConsumerError;
use crate::kafka::SourceWaker;

/// Where to start in one partition. [`Offset::Invalid`] where nothing is committed.
pub(crate) type Position = (Arc<Assignment>, Offset);

type Answer = Result<Vec<Position>, ConsumerError>;

/// Fetches the committed offsets of partitions.
pub(super) struct Positions {
    consumer: ClientConfig,
    answer: Sender<Answer>,
    answers: Receiver<Answer>,
    left: Arc<AtomicBool>,
    waker: SourceWaker,
}

impl Positions {
    /// Asks with these settings of a consumer until `left` is set. `waker` is woken with each answer.
    pub(super) fn new(consumer: ClientConfig, left: Arc<AtomicBool>, waker: SourceWaker) -> Self {
        let (answer, answers) = channel();
        Self { consumer, answer, answers, left, waker }
    }

    /// Starts to fetch the offsets of these partitions.
    pub(super) fn fetch(&self, partitions: Vec<Arc<Assignment>>) -> Result<(), ConsumerError> {
        let (consumer, left) = (self.consumer.clone(), self.left.clone());
        let (answer, waker) = (self.answer.clone(), self.waker.clone());
        let thread = thread::Builder::new().name("campanile-positions".into());
        // Nothing joins it: brokers that do not answer must not hold up the end.
        let spawned = thread.spawn(move || {
            let fetched = match fetch(partitions, &consumer, &left) {
                Ok(Some(positions)) => Ok(positions),
                Ok(None) => return,
                Err(error) => Err(ConsumerError::kafka(
                    "the group's committed offsets cannot be read: allow this user to describe it",
                    Some(error),
                )),
            };
            // Nobody is left to hear it at a shutdown.
            let _ = answer.send(fetched);
            waker.wake();
        });
        let failed =
            |error| ConsumerError::kafka(format!("failed to start a thread: {error}"), None);
        spawned.map(drop).map_err(failed)
    }

    /// Returns what was fetched, if anything was.
    pub(super) fn poll(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

/// Whether all of these were revoked.
fn is_over(partitions: &[Arc<Assignment>]) -> bool {
    partitions.iter().all(|assignment| assignment.is_revoked())
}

/// `None` if nobody waits any more.
fn fetch(
    partitions: Vec<Arc<Assignment>>,
    consumer: &ClientConfig,
    left: &AtomicBool,
) -> Result<Option<Vec<Position>>, KafkaError> {
    let group = Group::connect(consumer)?;
    let mut list = TopicPartitionList::new();
    for assignment in &partitions {
        list.add_partition(&assignment.topic, assignment.partition);
    }
    let committed = loop {
        match group.committed(&list, CALL) {
            Ok(committed) => break committed,
            Err(_) if left.load(Ordering::Acquire) || is_over(&partitions) => return Ok(None),
            Err(error) if trouble::is_permanent(&error) => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "failed to fetch committed offsets; retrying");
                thread::sleep(PAUSE);
            }
        }
    };
    let position = |assignment: Arc<Assignment>| {
        let element = committed.find_partition(&assignment.topic, assignment.partition);
        (assignment, element.map_or(Offset::Invalid, |element| element.offset()))
    };
    Ok(Some(partitions.into_iter().map(position).collect()))
}
