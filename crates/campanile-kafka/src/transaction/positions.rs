//! Start positions of newly assigned partitions.
//!
//! librdkafka (2.12) looks up the start position by itself, but incorrectly in one case. While a
//! committed offset is pending in an open transaction, librdkafka repeats its request; if the
//! assignment changes in the meantime, it starts the partition as if no offset were committed, at
//! `auto.offset.reset`. With `earliest` this repeats outputs, and with `latest` it loses records. This
//! module therefore fetches the committed offsets until the brokers return them, and the source seeks
//! to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::error;
use super::group::GroupOffsets;
use super::worker::{CALL_TIMEOUT, RETRY_DELAY};
use crate::client::ClientSettings;
use crate::driver::Assignment;
use crate::error::ConsumerError;
use crate::kafka::SourceWaker;

/// The start position of one partition: [`Offset::Invalid`] if no offset is committed.
pub(crate) type Position = (Arc<Assignment>, Offset);

type PositionsResult = Result<Vec<Position>, ConsumerError>;

/// Fetches the committed offsets of partitions.
pub(super) struct Positions {
    consumer: ClientSettings,
    sender: Sender<PositionsResult>,
    results: Receiver<PositionsResult>,
    abandoned: Arc<AtomicBool>,
    waker: SourceWaker,
}

impl Positions {
    /// Creates a fetcher with these consumer settings. Requests are retried until `abandoned` is set, and
    /// `waker` is woken with each answer.
    pub(super) fn new(
        consumer: ClientSettings,
        abandoned: Arc<AtomicBool>,
        waker: SourceWaker,
    ) -> Self {
        let (sender, results) = channel();
        Self { consumer, sender, results, abandoned, waker }
    }

    /// Starts fetching the committed offsets of these partitions.
    pub(super) fn fetch(&self, partitions: Vec<Arc<Assignment>>) -> Result<(), ConsumerError> {
        let (consumer, abandoned) = (self.consumer.clone(), self.abandoned.clone());
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let thread = thread::Builder::new().name("campanile-positions".into());
        // The thread is never joined: brokers that do not respond must not delay the shutdown.
        let spawned = thread.spawn(move || {
            let fetched = match fetch(partitions, &consumer, &abandoned) {
                Ok(Some(positions)) => Ok(positions),
                Ok(None) => return,
                Err(error) => Err(ConsumerError::kafka(
                    "failed to read the group's committed offsets: allow the user `Read` on the group",
                    Some(error),
                )),
            };
            // Fails only at a shutdown, when the receiver is gone.
            let _ = sender.send(fetched);
            waker.wake();
        });
        let failed =
            |error| ConsumerError::kafka(format!("failed to spawn a thread: {error}"), None);
        spawned.map(drop).map_err(failed)
    }

    /// Takes the next answer, if any has arrived.
    pub(super) fn poll(&self) -> Option<PositionsResult> {
        self.results.try_recv().ok()
    }
}

/// Checks whether all of these partitions were revoked.
fn is_over(partitions: &[Arc<Assignment>]) -> bool {
    partitions.iter().all(|assignment| assignment.is_revoked())
}

/// Fetches the start positions of these partitions. Returns `None` once they are not needed any more,
/// because serving ends or all of the partitions were revoked.
fn fetch(
    partitions: Vec<Arc<Assignment>>,
    consumer: &ClientSettings,
    abandoned: &AtomicBool,
) -> Result<Option<Vec<Position>>, KafkaError> {
    let group = GroupOffsets::connect(consumer)?;
    let mut list = TopicPartitionList::new();
    for assignment in &partitions {
        list.add_partition(&assignment.topic, assignment.partition);
    }
    let committed = loop {
        match group.committed(&list, CALL_TIMEOUT) {
            Ok(committed) => break committed,
            Err(_) if abandoned.load(Ordering::Acquire) || is_over(&partitions) => return Ok(None),
            Err(error) if error::is_permanent(&error) => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "failed to fetch committed offsets; retrying");
                thread::sleep(RETRY_DELAY);
            }
        }
    };
    let position = |assignment: Arc<Assignment>| {
        let element = committed.find_partition(&assignment.topic, assignment.partition);
        (assignment, element.map_or(Offset::Invalid, |element| element.offset()))
    };
    Ok(Some(partitions.into_iter().map(position).collect()))
}
