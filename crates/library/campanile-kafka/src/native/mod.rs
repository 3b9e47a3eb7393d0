//! Functions of librdkafka that rdkafka's safe interface lacks. This is the crate's only unsafe
//! module.
//!
//! * Header names as bytes. rdkafka panics on a name that is not UTF-8, and a producer can send any
//!   bytes as a name.
//! * A partition's first and end offset, as librdkafka knows them from its fetches. rdkafka can only ask
//!   the brokers.
//! * The ids of topics: [`topic_ids`].
//! * Leader epochs, and the metadata of committed offsets. rdkafka panics on metadata that is not UTF-8.
//! * Whether the consumer is a member of its group, whether it has left the group, and whether a poll
//!   would handle an event.
//! * The answer to an asynchronous commit. rdkafka starts such a commit without a reply queue, so
//!   its failure would go unnoticed.
//! * Setting the OAuth token of a client whose events are not polled, or not polled yet.
//! * Whether the client knows brokers of its cluster, and adding brokers to it.
//! * Messages in batches: [`fetch_queues`].

#![allow(unsafe_code)]

pub(crate) mod fetch_queues;
pub(crate) mod topic_ids;

use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use futures_util::task::AtomicWaker;
use rdkafka::TopicPartitionList;
use rdkafka::bindings::{
    rd_kafka_brokers_add, rd_kafka_brokers_learned_ids, rd_kafka_commit_queue,
    rd_kafka_consumer_group_metadata, rd_kafka_consumer_group_metadata_destroy,
    rd_kafka_consumer_group_metadata_generation_id, rd_kafka_consumer_group_metadata_member_id,
    rd_kafka_consumer_group_metadata_t, rd_kafka_get_watermark_offsets, rd_kafka_header_get_all,
    rd_kafka_headers_t, rd_kafka_mem_free, rd_kafka_message_headers, rd_kafka_message_s,
    rd_kafka_oauthbearer_set_token, rd_kafka_queue_destroy, rd_kafka_queue_get_consumer,
    rd_kafka_queue_length, rd_kafka_resp_err_t as Code, rd_kafka_topic_partition_get_leader_epoch,
    rd_kafka_topic_partition_list_find, rd_kafka_topic_partition_set_leader_epoch,
    rd_kafka_topic_partition_t,
};
use rdkafka::client::{Client, ClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Message, OwnedMessage};

use crate::oauth::OauthToken;

/// Wakes the driver. Shared with librdkafka's callbacks and with the threads of the committer.
pub(crate) type SourceWaker = Arc<AtomicWaker>;

/// The maximum length of an error's text, in bytes.
const ERROR_LEN: usize = 512;

/// Starts a commit. A later poll passes the answer to the context's `commit_callback`.
pub(crate) fn commit<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    offsets: &TopicPartitionList,
) -> KafkaResult<()> {
    let client = consumer.client().native_ptr();
    // SAFETY: the consumer is borrowed, so its handle is alive. The result is a reference that is
    // destroyed below; it is null for a consumer without a group.
    let queue = unsafe { rd_kafka_queue_get_consumer(client) };
    if queue.is_null() {
        return Err(KafkaError::ConsumerCommit(Code::RD_KAFKA_RESP_ERR__UNKNOWN_GROUP.into()));
    }
    // SAFETY: the handle, the offsets and the queue are alive during the call, which copies the
    // offsets and takes its own reference to the queue. Without a callback the answer is an event,
    // which is what rdkafka polls that queue for.
    let code =
        unsafe { rd_kafka_commit_queue(client, offsets.ptr(), queue, None, ptr::null_mut()) };
    // SAFETY: this is the reference from above, which is not used any more.
    unsafe { rd_kafka_queue_destroy(queue) };
    match code {
        Code::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(KafkaError::ConsumerCommit(code.into())),
    }
}

/// Sets the token by which a client authenticates from now on.
pub(crate) fn set_oauth_token<C: ClientContext>(client: &Client<C>, token: OauthToken) {
    if let Err(error) = try_set_oauth_token(client, token) {
        tracing::error!(error, "failed to set the OAuth token");
    }
}

fn try_set_oauth_token<C: ClientContext>(
    client: &Client<C>,
    token: OauthToken,
) -> Result<(), String> {
    let token = token.into_client_token();
    let value = CString::new(token.token).map_err(|_| "it contains a NUL byte")?;
    let principal = CString::new(token.principal_name).expect("an empty name has no NUL byte");
    let mut text = [0; ERROR_LEN];
    // SAFETY: the client is borrowed, so its handle is alive. The strings end with NUL and live during
    // the call, which copies them. There are no extensions. At most the length of `text` is written.
    let code = unsafe {
        rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            value.as_ptr(),
            token.lifetime_ms,
            principal.as_ptr(),
            ptr::null_mut(),
            0,
            text.as_mut_ptr(),
            text.len(),
        )
    };
    if code == Code::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Ok(());
    }
    // SAFETY: the text ends with NUL: it was zeroed, and librdkafka ends what it writes with NUL.
    Err(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

/// Returns the ids of the brokers of the cluster that the client knows, connected or not. The bootstrap
/// servers do not count: they are only addresses.
pub(crate) fn broker_ids<C: ClientContext>(client: &Client<C>) -> Vec<i32> {
    let client = client.native_ptr();
    let mut count = 0;
    // SAFETY: the client is borrowed, so its handle is alive. The count lives during the call. A non-null
    // list of ids has as many as the count says, and belongs to this function, which frees it.
    unsafe {
        let ids = rd_kafka_brokers_learned_ids(client, &mut count);
        let known = match ids.is_null() {
            true => Vec::new(),
            false => slice::from_raw_parts(ids, count).to_vec(),
        };
        rd_kafka_mem_free(client, ids.cast());
        known
    }
}

/// Adds the addresses of brokers, separated by commas, to those that the client connects to. An address
/// to which it connects already is not added twice.
pub(crate) fn add_brokers<C: ClientContext>(client: &Client<C>, brokers: &str) {
    let brokers = CString::new(brokers).expect("librdkafka was created with these addresses");
    // SAFETY: the client is borrowed, so its handle is alive. The string ends with NUL and lives during
    // the call, which copies it.
    unsafe { rd_kafka_brokers_add(client.native_ptr(), brokers.as_ptr()) };
}

/// Reads the first offset of a partition's log, and the offset after its last record, as of the last fetch.
/// Sends no request.
pub(crate) fn log_range<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: i32,
) -> Option<(i64, i64)> {
    // A topic name contains no NUL byte.
    let topic = CString::new(topic).ok()?;
    let client = consumer.client().native_ptr();
    let (mut low, mut high) = (-1, -1);
    // SAFETY: the consumer is borrowed, so its handle is alive. The name ends with NUL. The name
    // and the offsets live during the call, which keeps no pointer to them.
    let code = unsafe {
        rd_kafka_get_watermark_offsets(client, topic.as_ptr(), partition, &mut low, &mut high)
    };
    // An offset is negative if it is unknown.
    (code == Code::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some((low, high))
}

/// Sets the leader epoch that belongs to the last offset of the list.
pub(crate) fn set_last_leader_epoch(list: &mut TopicPartitionList, epoch: i32) {
    let Some(last) = list.count().checked_sub(1) else { return };
    // SAFETY: the list is borrowed, and has this element.
    unsafe {
        let element = (*list.ptr()).elems.add(last);
        rd_kafka_topic_partition_set_leader_epoch(element, epoch);
    }
}

/// Reads the leader epoch and the metadata that belong to the offset of this partition.
pub(crate) fn offset_details<'a>(
    list: &'a TopicPartitionList,
    topic: &str,
    partition: i32,
) -> (Option<i32>, &'a [u8]) {
    let Some(element) = find(list, topic, partition) else {
        return (None, &[]);
    };
    // SAFETY: the element belongs to the list, which is borrowed for `'a`. Non-null metadata has as many
    // bytes as the element says, which live as long.
    unsafe {
        let epoch = rd_kafka_topic_partition_get_leader_epoch(element.as_ptr());
        let element = element.as_ref();
        let metadata = match element.metadata.is_null() {
            true => &[],
            false => slice::from_raw_parts(element.metadata.cast(), element.metadata_size),
        };
        ((epoch >= 0).then_some(epoch), metadata)
    }
}

fn find(
    list: &TopicPartitionList,
    topic: &str,
    partition: i32,
) -> Option<NonNull<rd_kafka_topic_partition_t>> {
    let topic = CString::new(topic).ok()?;
    // SAFETY: the list is borrowed, and the name lives during the call.
    let element =
        unsafe { rd_kafka_topic_partition_list_find(list.ptr(), topic.as_ptr(), partition) };
    NonNull::new(element)
}

/// Reads the generation of the group, if the consumer is a member of it. In the newer protocol it is the epoch
/// of the member.
pub(crate) fn generation<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> Option<i32> {
    let generation = with_group_metadata(consumer, |metadata| {
        // SAFETY: the metadata is alive and is only read.
        unsafe { rd_kafka_consumer_group_metadata_generation_id(metadata) }
    });
    generation.filter(|generation| *generation > 0)
}

/// Checks whether the consumer is a member of its group, that is, of one of the group's
/// generations.
pub(crate) fn is_member<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> bool {
    generation(consumer).is_some()
}

/// Checks whether there are events that a poll of the consumer would handle.
pub(crate) fn has_events<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> bool {
    // SAFETY: the consumer is borrowed, so its handle is alive. The result is a reference that is
    // destroyed below; it is null for a consumer without a group.
    let queue = unsafe { rd_kafka_queue_get_consumer(consumer.client().native_ptr()) };
    if queue.is_null() {
        return false;
    }
    // SAFETY: the reference is not used after it is destroyed.
    unsafe {
        let length = rd_kafka_queue_length(queue);
        rd_kafka_queue_destroy(queue);
        length > 0
    }
}

/// Checks whether the consumer has a member id. In the classic protocol it has none before it joins
/// its group and after it has left.
pub(crate) fn has_member_id<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> bool {
    with_group_metadata(consumer, |metadata| {
        // SAFETY: the metadata is alive and is only read.
        let id = unsafe { rd_kafka_consumer_group_metadata_member_id(metadata) };
        // SAFETY: a non-null id ends with NUL and lives as long as the metadata.
        !id.is_null() && !unsafe { CStr::from_ptr(id) }.is_empty()
    })
    .unwrap_or(false)
}

/// Reads the group's metadata. A consumer without a group has none.
fn with_group_metadata<C: ConsumerContext, T>(
    consumer: &BaseConsumer<C>,
    read: impl FnOnce(*const rd_kafka_consumer_group_metadata_t) -> T,
) -> Option<T> {
    let client = consumer.client().native_ptr();
    // SAFETY: the consumer is borrowed, so its handle is alive. The result is destroyed below; it
    // is null for a consumer without a group.
    let metadata = unsafe { rd_kafka_consumer_group_metadata(client) };
    if metadata.is_null() {
        return None;
    }
    let value = read(metadata);
    // SAFETY: the metadata is not used any more.
    unsafe { rd_kafka_consumer_group_metadata_destroy(metadata) };
    Some(value)
}

/// Reads each header's name and value, in order. A null value is `None`.
///
/// A name ends at its first NUL byte, since librdkafka returns it as a C string. Headers that
/// librdkafka cannot parse count as no headers.
pub(crate) fn headers<'m>(
    message: &'m BorrowedMessage<'_>,
) -> impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)> {
    // SAFETY: the message is borrowed for as long as the iterator lives.
    unsafe { message_headers(message.ptr()) }
}

/// Reads the headers of a message.
///
/// # Safety
/// The message must live for `'m`.
unsafe fn message_headers<'m>(
    message: *const rd_kafka_message_s,
) -> impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)> {
    let mut headers = ptr::null_mut();
    // SAFETY: the message is alive. The headers belong to the message and live as long. For a
    // message without headers, `headers` stays null.
    let code = unsafe { rd_kafka_message_headers(message, &mut headers) };
    let found = (code == Code::RD_KAFKA_RESP_ERR_NO_ERROR).then_some(headers.cast_const());
    // SAFETY: if there are headers, they live for `'m`.
    unsafe { iter_headers(found) }
}

/// Reads the headers of a message that no longer belongs to the consumer.
pub(crate) fn owned_headers(
    message: &OwnedMessage,
) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    // The pointer cast below relies on this; it is all that can be checked.
    const { assert!(size_of::<BorrowedHeaders>() == 0) };
    let headers = message.headers().map(|headers| ptr::from_ref(headers.as_borrowed()).cast());
    // SAFETY: rdkafka's `BorrowedHeaders` has no fields of its own: a reference to it is the
    // pointer to librdkafka's headers. The headers belong to the message, which is borrowed for as
    // long as the iterator lives.
    unsafe { iter_headers(headers) }
}

/// Iterates over headers.
///
/// # Safety
/// The headers must live for `'m`.
unsafe fn iter_headers<'m>(
    headers: Option<*const rd_kafka_headers_t>,
) -> impl Iterator<Item = (&'m [u8], Option<&'m [u8]>)> {
    let (headers, count) = headers.map_or((ptr::null(), 0), |headers| (headers, usize::MAX));
    (0..count).map_while(move |index| {
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: there are headers, since `count` is 0 otherwise, and they live as long as this
        // iterator. Beyond the last header the call returns an error and writes nothing.
        let code =
            unsafe { rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut size) };
        if code != Code::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        // SAFETY: without an error, `name` is a string that ends with NUL and lives as long as the
        // headers.
        let name = unsafe { CStr::from_ptr(name) };
        // SAFETY: a non-null value has `size` bytes, which live as long as the headers.
        let value =
            (!value.is_null()).then(|| unsafe { slice::from_raw_parts(value.cast::<u8>(), size) });
        Some((name.to_bytes(), value))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_driver::private::now;
    use rdkafka::ClientConfig;

    use super::*;

    fn set_token(settings: &[(&str, &str)], valid_for: Duration) -> Result<(), String> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1").set("group.id", "g");
        for (name, value) in settings {
            config.set(*name, *value);
        }
        let consumer: BaseConsumer = config.create().unwrap();
        try_set_oauth_token(consumer.client(), OauthToken::new("a.b.c", now() + valid_for))
    }

    #[test]
    fn token_for_another_mechanism_is_refused() {
        let error = set_token(&[], Duration::from_secs(60)).unwrap_err();
        assert!(error.contains("OAUTHBEARER"), "{error}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn valid_token_is_accepted() {
        let settings =
            [("security.protocol", "sasl_plaintext"), ("sasl.mechanisms", "OAUTHBEARER")];
        set_token(&settings, Duration::from_secs(60)).unwrap();
        let error = set_token(&settings, Duration::ZERO).unwrap_err();
        assert!(!error.is_empty());
    }
}
