//! Seeks of assigned partitions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use campanile_driver::source::Assignment;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};

use crate::offset_identity::add_offset;

/// The timeout of a seek. It waits for a thread of librdkafka, but not for a broker.
const SEEK_TIMEOUT: Duration = Duration::from_millis(100);

/// A partition and the offset to seek to.
pub(crate) type Position = (Arc<Assignment>, i64);

/// Lists positions with their leader epochs, by which librdkafka finds out whether the log was truncated.
pub(crate) fn position_list(positions: &[Position]) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (assignment, offset) in positions {
        add_offset(&mut list, assignment, *offset, assignment.leader_epoch());
    }
    list
}

/// Seeks to these positions of paused partitions, and resumes the partitions after `forward` has forwarded
/// them. Returns those for which the seek has succeeded; the others stay in the list, paused.
///
/// When librdkafka has stopped to fetch an earlier assignment of a partition, it ends the forwarding of the
/// partition's messages. A seek that succeeds shows that this is over.
pub(crate) fn seek_and_resume<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    positions: &mut Vec<Position>,
    forward: impl Fn(&Assignment),
) -> Vec<Position> {
    let is_sought = seek(consumer, position_list(positions));
    let sought: Vec<_> =
        positions.extract_if(.., |(assignment, _)| is_sought(assignment)).collect();
    if !sought.is_empty() {
        sought.iter().for_each(|(assignment, _)| forward(assignment));
        // Nothing was fetched so far: an offset that is not in the log would reset the position.
        if let Err(error) = consumer.resume(&position_list(&sought)) {
            tracing::warn!(%error, "failed to resume partitions after a seek");
        }
        // A seek wakes librdkafka's thread that fetches, and a resume does not, so that it could sleep for
        // another second. No record from before the seek is delivered after it.
        drop(seek(consumer, position_list(&sought)));
    }
    sought
}

/// Seeks to these positions. Returns a predicate for the partitions for which this has succeeded.
pub(crate) fn seek<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    list: TopicPartitionList,
) -> impl Fn(&Assignment) -> bool + use<C> {
    let sought: HashSet<_> = match consumer.seek_partitions(list, SEEK_TIMEOUT) {
        // A partition that librdkafka has not started yet has an error, and its seek is retried.
        Ok(list) => {
            let elements = list.elements();
            let sought = elements.iter().filter(|element| element.error().is_ok());
            sought.map(|element| (element.topic().to_owned(), element.partition())).collect()
        }
        Err(error) => {
            tracing::debug!(%error, "failed to seek; retrying");
            HashSet::new()
        }
    };
    move |assignment| sought.contains(&(assignment.topic.to_string(), assignment.partition))
}
