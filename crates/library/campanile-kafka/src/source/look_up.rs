//! The lookup of the offset that a seek goes to.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use campanile_core::{BoxError, millis};
use campanile_driver::source::{Assignment, SeekTarget};
use campanile_driver::{SeekError, SeekTo};
use futures_util::future::BoxFuture;
use rdkafka::consumer::Consumer;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::oneshot;

use crate::client::ClientSettings;
use crate::transaction::GroupOffsets;

/// The timeout of each request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Looks up an offset, on a thread and a client of its own, because the requests wait for brokers.
pub(super) fn look_up(
    client: ClientSettings,
    assignment: Arc<Assignment>,
    to: SeekTo,
) -> BoxFuture<'static, Result<SeekTarget, SeekError>> {
    let (sender, target) = oneshot::channel();
    let request = move || {
        // The receiver is gone if the seek was abandoned.
        let _ = sender.send(request(&client, &assignment, to));
    };
    let spawned = thread::Builder::new().name("campanile-seek".into()).spawn(request);
    Box::pin(async move {
        spawned.map_err(|error| SeekError::Kafka(error.into()))?;
        target.await.map_err(|_| SeekError::Kafka("the lookup has panicked".into()))?
    })
}

fn request(
    client: &ClientSettings,
    assignment: &Assignment,
    to: SeekTo,
) -> Result<SeekTarget, SeekError> {
    let (topic, partition) = (&*assignment.topic, assignment.partition);
    let group = GroupOffsets::connect(client).map_err(kafka_error)?;
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, partition);
    let committed = group.committed(&list, REQUEST_TIMEOUT).map_err(kafka_error)?;
    let list_offset = |time: Offset| {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, time).map_err(kafka_error)?;
        let found = group.consumer().offsets_for_times(list, REQUEST_TIMEOUT);
        offset_of(&found.map_err(kafka_error)?, assignment)
    };
    // These two stand for times in the request. `fetch_watermarks` is not used, because it misses an
    // error of one of its two requests.
    let unknown = || kafka_error("the brokers returned no offset");
    let first = list_offset(Offset::Beginning)?.ok_or_else(unknown)?;
    let end = list_offset(Offset::End)?.ok_or_else(unknown)?;
    let offset = match to {
        SeekTo::Beginning => first,
        SeekTo::End => end,
        SeekTo::Offset(offset) if (first..=end).contains(&offset) => offset,
        SeekTo::Offset(_) => return Err(SeekError::OutOfRange { first, end }),
        SeekTo::Time(time) => {
            // A negative number would stand for the beginning or the end.
            let millis = millis::of(time).max(0);
            list_offset(Offset::Offset(millis))?.unwrap_or(end)
        }
    };
    let committed = offset_of(&committed, assignment)?.unwrap_or(first);
    Ok(SeekTarget { offset, committed })
}

/// Returns the partition's offset in a list, or `None` if the list has none.
fn offset_of(list: &TopicPartitionList, assignment: &Assignment) -> Result<Option<i64>, SeekError> {
    let Some(element) = list.find_partition(&assignment.topic, assignment.partition) else {
        return Ok(None);
    };
    element.error().map_err(kafka_error)?;
    Ok(match element.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    })
}

fn kafka_error(error: impl Into<BoxError>) -> SeekError {
    SeekError::Kafka(error.into())
}
