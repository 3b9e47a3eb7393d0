//! What librdkafka can do and rdkafka's safe interface cannot: the crate's only unsafe module.
//!
//! * A header's name as bytes. rdkafka panics on one that is not UTF-8, and a name is whatever a
//!   producer has sent.
//! * How far a partition goes, as librdkafka knows it by its fetches. rdkafka only asks the brokers.
//! * Whether the group has taken this consumer in, and whether it has left.
//! * The answer to an asynchronous commit. rdkafka starts such a commit without a queue to answer to,
//!   so its failure would be known to nobody.
//! * Messages in batches: [`fetched`].

#![allow(unsafe_code)]

pub(super) mod fetched;

use std::ffi::{CStr, CString};
use std::{ptr, slice};

use rdkafka::TopicPartitionList;
use rdkafka::bindings::{
    rd_kafka_commit_queue, rd_kafka_consumer_group_metadata,
    rd_kafka_consumer_group_metadata_destroy, rd_kafka_consumer_group_metadata_generation_id,
    rd_kafka_consumer_group_metadata_member_id, rd_kafka_consumer_group_metadata_t,
    rd_kafka_get_watermark_offsets, rd_kafka_header_get_all, rd_kafka_headers_t,
    rd_kafka_message_headers, rd_kafka_message_s, rd_kafka_queue_destroy,
    rd_kafka_queue_get_consumer, rd_kafka_resp_err_t as Code,
};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Message, OwnedMessage};

/// Starts a commit. Its answer comes to the context's `commit_callback`, from a later poll.
pub(super) fn commit<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    offsets: &TopicPartitionList,
) -> KafkaResult<()> {
    let client = consumer.client().native_ptr();
    // SAFETY: the consumer is borrowed, so its handle is alive. The queue is a reference that is ours
    // to destroy; it is null for a consumer without a group.
    let queue = unsafe { rd_kafka_queue_get_consumer(client) };
    if queue.is_null() {
        return Err(KafkaError::ConsumerCommit(Code::RD_KAFKA_RESP_ERR__UNKNOWN_GROUP.into()));
    }
    // SAFETY: handle, offsets and queue are alive during the call, which copies the offsets and takes
    // its own reference to the queue. Without a callback the answer is an event, which is what
    // rdkafka polls that queue for.
    let code =
        unsafe { rd_kafka_commit_queue(client, offsets.ptr(), queue, None, ptr::null_mut()) };
    // SAFETY: the reference from above, which is not used any more.
    unsafe { rd_kafka_queue_destroy(queue) };
    match code {
        Code::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(KafkaError::ConsumerCommit(code.into())),
    }
}

/// The offset behind a partition's last record, as the last fetch has told. Asks nobody.
pub(super) fn end<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: i32,
) -> Option<i64> {
    // No topic's name has a NUL byte.
    let topic = CString::new(topic).ok()?;
    let client = consumer.client().native_ptr();
    let (mut low, mut high) = (-1, -1);
    // SAFETY: the consumer is borrowed, so its handle is alive; the name ends with NUL, and name and
    // offsets live during the call, which keeps none of them.
    let code = unsafe {
        rd_kafka_get_watermark_offsets(client, topic.as_ptr(), partition, &mut low, &mut high)
    };
    // Negative where it is not known.
    (code == Code::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
}

/// Whether the group has taken it in: whether it is a member of one of the group's generations.
pub(super) fn is_member<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> bool {
    // SAFETY: the metadata is alive, and only read.
    of_group(consumer, |metadata| unsafe {
        rd_kafka_consumer_group_metadata_generation_id(metadata) > 0
    })
}

/// Whether it has an id in its group. In the classic protocol it has none before it joins, and none
/// after it has left.
pub(super) fn has_id<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> bool {
    of_group(consumer, |metadata| {
        // SAFETY: the metadata is alive, and only read.
        let id = unsafe { rd_kafka_consumer_group_metadata_member_id(metadata) };
        // SAFETY: an id that is not null ends with NUL, and lives as long as the metadata.
        !id.is_null() && !unsafe { CStr::from_ptr(id) }.is_empty()
    })
}

/// What is so of its group; `false` for a consumer without one.
fn of_group<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    is: impl FnOnce(*const rd_kafka_consumer_group_metadata_t) -> bool,
) -> bool {
    let client = consumer.client().native_ptr();
    // SAFETY: the consumer is borrowed, so its handle is alive. What this gives is ours to destroy; it
    // is null for a consumer without a group.
    let metadata = unsafe { rd_kafka_consumer_group_metadata(client) };
    if metadata.is_null() {
        return false;
    }
    let is = is(metadata);
    // SAFETY: it is not used any more.
    unsafe { rd_kafka_consumer_group_metadata_destroy(metadata) };
    is
}

/// Each header's name and value, in order. A value that is null is `None`.
///
/// A name ends at its first NUL byte, as librdkafka hands it out. Headers that librdkafka cannot
/// parse are none.
pub(super) fn headers<'m>(
    message: &'m BorrowedMessage<'_>,
) -> impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)> {
    // SAFETY: the message is borrowed as long as the iterator.
    unsafe { walk_of(message.ptr()) }
}

/// # Safety
/// The message must live for `'m`.
unsafe fn walk_of<'m>(
    message: *const rd_kafka_message_s,
) -> impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)> {
    let mut headers = ptr::null_mut();
    // SAFETY: the message is alive. The headers belong to it and live as long; without any, `headers`
    // stays null.
    let code = unsafe { rd_kafka_message_headers(message, &mut headers) };
    let found = (code == Code::RD_KAFKA_RESP_ERR_NO_ERROR).then_some(headers.cast_const());
    // SAFETY: there are headers, and they live for `'m`.
    unsafe { walk(found) }
}

/// The same of a message that is not the consumer's any more.
pub(super) fn owned_headers(
    message: &OwnedMessage,
) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    // What the next lines rely on, as far as it can be checked.
    const { assert!(size_of::<BorrowedHeaders>() == 0) };
    let headers = message.headers().map(|headers| ptr::from_ref(headers.as_borrowed()).cast());
    // SAFETY: rdkafka's `BorrowedHeaders` stands for librdkafka's headers and has nothing of its own:
    // a reference to it is the pointer to them. They belong to the message, which is borrowed as long
    // as the iterator.
    unsafe { walk(headers) }
}

/// # Safety
/// The headers must live for `'m`.
unsafe fn walk<'m>(
    headers: Option<*const rd_kafka_headers_t>,
) -> impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)> {
    let (headers, count) = headers.map_or((ptr::null(), 0), |headers| (headers, usize::MAX));
    (0..count).map_while(move |index| {
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: there are headers, for else `count` is 0, and they live as long as this iterator.
        // Beyond the last header the call answers with an error and writes nothing.
        let code =
            unsafe { rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut size) };
        if code != Code::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        // SAFETY: without an error `name` is a string that ends with NUL, and lives as long as the
        // headers.
        let name = unsafe { CStr::from_ptr(name) };
        // SAFETY: a value that is not null has `size` bytes, which live as long as the headers.
        let value =
            (!value.is_null()).then(|| unsafe { slice::from_raw_parts(value.cast::<u8>(), size) });
        Some((name.to_bytes(), value))
    })
}
