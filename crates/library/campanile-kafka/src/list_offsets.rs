//! Requests for the first or the last offsets of partitions.

use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use campanile_driver::source::Assignment;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};

/// The timeout of the request for all partitions.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a request for one partition. It is short, because other partitions may wait for
/// the requests before them.
const SINGLE_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum number of partitions that are requested at the same time, each on its own thread.
const MAX_CONCURRENT: usize = 64;

/// Requests the offsets that this logical offset stands for. `handle_response` is called with some
/// of the partitions and the response for them, until each partition had its response. Partitions
/// that are revoked in the meantime may get none, and so may all once `is_closing`.
///
/// librdkafka fails a request as a whole if one broker does not answer, and does not tell which
/// partitions that broker leads. Each partition is then requested by itself, at the same time, so
/// that only those of that broker wait for it and have an error.
pub(crate) fn list_offsets<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[Arc<Assignment>],
    offset: Offset,
    is_closing: impl Fn() -> bool,
    mut handle_response: impl FnMut(&[Arc<Assignment>], KafkaResult<TopicPartitionList>) + Send,
) {
    // A logical offset stands for a time in the request.
    let request = |partitions: &[Arc<Assignment>], timeout| {
        consumer.offsets_for_times(list(partitions, offset), timeout)
    };
    let response = request(partitions, REQUEST_TIMEOUT);
    match &response {
        Err(error) if partitions.len() > 1 => {
            tracing::debug!(%error, "failed to list offsets; requesting each partition by itself");
        }
        _ => return handle_response(partitions, response),
    }
    let (request, handle_response) = (&request, &Mutex::new(handle_response));
    for partitions in partitions.chunks(MAX_CONCURRENT) {
        if is_closing() {
            return;
        }
        thread::scope(|scope| {
            for assignment in partitions.iter().filter(|assignment| !assignment.is_revoked()) {
                let request_single = move || {
                    let single = slice::from_ref(assignment);
                    let response = request(single, SINGLE_REQUEST_TIMEOUT);
                    let mut handle_response =
                        handle_response.lock().unwrap_or_else(PoisonError::into_inner);
                    handle_response(single, response);
                };
                let thread = thread::Builder::new().name("campanile-list".into());
                if thread.spawn_scoped(scope, request_single).is_err() {
                    request_single();
                }
            }
        });
    }
}

/// Lists partitions with this offset.
pub(crate) fn list(partitions: &[Arc<Assignment>], offset: Offset) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for assignment in partitions {
        list.add_partition_offset(&assignment.topic, assignment.partition, offset)
            .expect("a logical offset is valid");
    }
    list
}

#[cfg(test)]
mod tests {
    use campanile_test::MockKafka;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::source::tests::{assignment, consumer};

    #[test]
    fn failed_request_for_one_partition_is_not_repeated() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("payments", 1).unwrap();
        let consumer = consumer(&kafka.consumer_config("billing"));
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        kafka.cluster().request_errors(RDKafkaApiKey::ListOffsets, &[refused]);
        let mut responses = Vec::new();
        let partitions = [assignment("payments", 0)];
        list_offsets(
            &consumer,
            &partitions,
            Offset::End,
            || false,
            |_, response| {
                responses.push(response.map(drop));
            },
        );
        assert!(matches!(responses[..], [Err(_)]), "{responses:?}");
    }
}
