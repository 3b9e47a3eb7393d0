//! Requests for the ids of topics, which change when a topic is recreated.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use campanile_driver::source::Assignment;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::KafkaResult;

use crate::native::topic_ids::{TopicIdRequest, TopicIds};

/// The timeout of the first request. It is shorter than the time that the last commit has. The timeout grows
/// by this with each further request that fails, since brokers may be slow.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest timeout of a request.
pub(crate) const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Requests the ids of the topics of these partitions, and waits for them. Consecutive attempts ask different
/// brokers, and wait longer.
pub(crate) fn request_ids<C: ClientContext>(
    client: &Client<C>,
    partitions: &[Arc<Assignment>],
    attempt: usize,
    first_timeout: Duration,
) -> KafkaResult<TopicIds> {
    let count = u32::try_from(attempt + 1).unwrap_or(u32::MAX);
    let timeout = first_timeout.saturating_mul(count).min(MAX_REQUEST_TIMEOUT);
    let topics: BTreeSet<&str> = partitions.iter().map(|assignment| &*assignment.topic).collect();
    TopicIdRequest::start(client, topics, timeout, attempt, None).wait()
}

/// Checks whether the partition has another log than the one that it was started with.
pub(crate) fn has_other_log(ids: &TopicIds, assignment: &Assignment) -> bool {
    let (old, new) = (assignment.log_id(), ids.get(&*assignment.topic));
    let is_other = matches!((old, new), (Some(old), Some(Ok(Some(new)))) if old != new);
    is_other || assignment.is_log_lost()
}

/// Checks the topics of these partitions, and marks the partitions that have another log by now. Waits for
/// the response. A topic that does not exist is not a topic that was recreated.
pub(crate) fn check_topics<C: ClientContext>(
    client: &Client<C>,
    partitions: &[Arc<Assignment>],
    attempt: usize,
) -> KafkaResult<()> {
    if partitions.iter().all(|assignment| assignment.log_id().is_none()) {
        return Ok(());
    }
    let ids = request_ids(client, partitions, attempt, REQUEST_TIMEOUT)?;
    partitions.iter().filter(|of| has_other_log(&ids, of)).for_each(|of| of.lose_log());
    Ok(())
}

/// Requests the id of a topic, for the command. `None` if the brokers have no ids. Blocks for about this time at
/// most.
///
/// # Errors
/// Fails if no broker answers in time, or if the topic does not exist.
pub fn topic_id<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    timeout: Duration,
) -> KafkaResult<Option<Arc<str>>> {
    let attempts = timeout.as_millis() / REQUEST_TIMEOUT.as_millis();
    let mut attempt = 0;
    loop {
        let of_attempt = REQUEST_TIMEOUT.min(timeout);
        match TopicIdRequest::start(client, [topic], of_attempt, attempt, None).wait() {
            Ok(mut ids) => return ids.remove(topic).unwrap_or(Ok(None)),
            Err(error) if attempt as u128 >= attempts => return Err(error),
            Err(_) => attempt += 1,
        }
    }
}
