//! Requests for the first or the last offsets of partitions.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};

use super::context::Context;
use super::start_positions::list;
use crate::driver::Assignment;

/// The timeout of the request for all partitions.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a request for one partition. It is short, because the partitions behind it wait.
const SINGLE_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests the offsets that this logical offset stands for. `handle_response` is called with some
/// of the partitions and the response for them, until each partition had its response. Partitions
/// that are revoked in the meantime may get none.
///
/// librdkafka fails a request as a whole if one broker does not answer. The partitions are then
/// requested one at a time, so that only those of that broker have an error.
pub(super) fn list_offsets(
    consumer: &BaseConsumer<Context>,
    partitions: &[Arc<Assignment>],
    offset: Offset,
    mut handle_response: impl FnMut(&[Arc<Assignment>], KafkaResult<TopicPartitionList>),
) {
    // A logical offset stands for a time in the request.
    let request = |partitions: &[Arc<Assignment>], timeout| {
        consumer.offsets_for_times(list(partitions, offset), timeout)
    };
    let response = request(partitions, REQUEST_TIMEOUT);
    let Err(error) = &response else {
        return handle_response(partitions, response);
    };
    tracing::debug!(%error, "failed to list offsets; requesting one partition at a time");
    for assignment in partitions {
        if consumer.context().is_closing() {
            return;
        }
        if !assignment.is_revoked() {
            let single = slice::from_ref(assignment);
            handle_response(single, request(single, SINGLE_REQUEST_TIMEOUT));
        }
    }
}
