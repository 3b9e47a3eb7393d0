//! Queues for fetched messages, apart from the consumer's own queue.
//!
//! rdkafka's consumer takes each message off the consumer's queue as an event, which costs an
//! allocation and several clock readings per message. These queues are read in batches instead.
//! Only events remain in the consumer's queue, so callbacks are served no matter how much is
//! fetched.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use futures_util::task::AtomicWaker;
use rdkafka::Timestamp;
use rdkafka::bindings::{
    rd_kafka_consume_batch_queue, rd_kafka_message_destroy, rd_kafka_message_errstr,
    rd_kafka_message_leader_epoch, rd_kafka_message_s, rd_kafka_message_timestamp,
    rd_kafka_queue_cb_event_enable, rd_kafka_queue_destroy, rd_kafka_queue_forward,
    rd_kafka_queue_get_partition, rd_kafka_queue_new, rd_kafka_queue_t,
    rd_kafka_resp_err_t as Code, rd_kafka_t, rd_kafka_timestamp_type_t as Kind,
    rd_kafka_topic_name, rd_kafka_topic_s,
};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;

use super::message_headers;

/// The number of queues. With order by partition, at least this many partitions have records to
/// process at the same time. Each queue costs memory for prefetched messages: at least one batch of
/// a producer.
pub(crate) const QUEUES: usize = 16;

/// The queues. All methods do nothing before [`open`](Self::open) and after [`close`](Self::close).
pub(crate) struct FetchQueues {
    queues: [AtomicPtr<rd_kafka_queue_t>; QUEUES],
    /// Woken when a message arrives. Kept until the queues are destroyed.
    waker: Arc<AtomicWaker>,
}

impl FetchQueues {
    /// Creates the queues, which wake `waker` when a message arrives.
    pub(crate) fn new(waker: Arc<AtomicWaker>) -> Self {
        Self { queues: Default::default(), waker }
    }

    /// Opens the queues. They must be closed before the consumer is dropped.
    pub(crate) fn open<C: ConsumerContext>(&self, consumer: &BaseConsumer<C>) {
        for opened in &self.queues {
            // SAFETY: the consumer is borrowed, so its handle is alive. `close` destroys the queue.
            let queue = unsafe { rd_kafka_queue_new(consumer.client().native_ptr()) };
            let waker = Arc::as_ptr(&self.waker).cast_mut().cast();
            // SAFETY: the queue is alive. The waker lives as long as `self`, and `close` removes
            // the callback before that.
            unsafe { rd_kafka_queue_cb_event_enable(queue, Some(wake), waker) };
            opened.store(queue, Ordering::Release);
        }
    }

    /// Forwards the messages of this partition to the queue with this index. Must be called before
    /// the partition is assigned, so that no message goes elsewhere.
    pub(crate) fn forward_partition<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        topic: &str,
        partition: i32,
        index: usize,
    ) {
        let to = self.queues[index].load(Ordering::Acquire);
        let Ok(topic) = CString::new(topic) else {
            return;
        };
        if to.is_null() {
            return;
        }
        let client = consumer.client().native_ptr();
        // SAFETY: the handle and the name are alive during the call. The result is null, or a
        // reference that is destroyed below.
        let from = unsafe { rd_kafka_queue_get_partition(client, topic.as_ptr(), partition) };
        if from.is_null() {
            return;
        }
        // SAFETY: both queues are alive. The forwarding outlives the reference, which is not used
        // any more.
        unsafe {
            rd_kafka_queue_forward(from, to);
            rd_kafka_queue_destroy(from);
        }
    }

    /// Takes up to `limit` messages off the queue with this index. Messages of a partition are in
    /// order.
    pub(crate) fn take<'a>(
        &'a self,
        index: usize,
        buffer: &'a mut MessageBuffer,
        limit: usize,
    ) -> FetchedMessages<'a> {
        let queue = self.queues[index].load(Ordering::Acquire);
        buffer.messages.resize(limit, ptr::null_mut());
        let count = if queue.is_null() || limit == 0 {
            0
        } else {
            // SAFETY: the queue is alive, and the buffer has room for `limit` messages. With a
            // timeout of 0 the call does not wait. The messages are owned by the caller, and
            // `FetchedMessages` destroys them.
            unsafe { rd_kafka_consume_batch_queue(queue, 0, buffer.messages.as_mut_ptr(), limit) }
        };
        // The count is negative on an error, which only occurs with a legacy consumer.
        buffer.messages.truncate(usize::try_from(count).unwrap_or(0));
        FetchedMessages { buffer, next: 0 }
    }

    /// Destroys the queues, with the messages that are still in them.
    pub(crate) fn close(&self) {
        for closed in &self.queues {
            let queue = closed.swap(ptr::null_mut(), Ordering::AcqRel);
            if !queue.is_null() {
                // SAFETY: the queue is alive, and no caller can reach it any more. Without its
                // callback it no longer refers to the waker.
                unsafe {
                    rd_kafka_queue_cb_event_enable(queue, None, ptr::null_mut());
                    rd_kafka_queue_destroy(queue);
                }
            }
        }
    }
}

/// Called by librdkafka when the first message or event arrives in an empty queue.
///
/// # Safety
/// The second argument must be a pointer to a live [`AtomicWaker`].
pub(crate) unsafe extern "C" fn wake(_: *mut rd_kafka_t, waker: *mut c_void) {
    // SAFETY: this is the waker that was registered with the callback, and it lives as long as the
    // callback.
    let waker = unsafe { &*waker.cast::<AtomicWaker>() };
    waker.wake();
}

/// A reusable buffer for messages.
#[derive(Default)]
pub(crate) struct MessageBuffer {
    messages: Vec<*mut rd_kafka_message_s>,
}

/// Messages that were taken off a queue. Messages that were not read are destroyed on drop.
pub(crate) struct FetchedMessages<'a> {
    buffer: &'a mut MessageBuffer,
    next: usize,
}

impl FetchedMessages<'_> {
    pub(crate) fn len(&self) -> usize {
        self.buffer.messages.len()
    }

    /// Takes the next message, or the error that stands in its place.
    pub(crate) fn next(&mut self) -> Option<Result<Message<'_>, FetchError>> {
        let &message = self.buffer.messages.get(self.next)?;
        self.next += 1;
        // SAFETY: librdkafka has filled the buffer with non-null messages, which live until this
        // `FetchedMessages` is dropped.
        let message = Message(unsafe { NonNull::new_unchecked(message) }, PhantomData);
        Some(match message.get().err {
            Code::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(message),
            Code::RD_KAFKA_RESP_ERR__PARTITION_EOF => Err(FetchError {
                error: KafkaError::PartitionEOF(message.partition()),
                reason: message.reason(),
            }),
            code => Err(FetchError {
                error: KafkaError::MessageConsumption(code.into()),
                reason: message.reason(),
            }),
        })
    }
}

impl Drop for FetchedMessages<'_> {
    fn drop(&mut self) {
        for message in self.buffer.messages.drain(..) {
            // SAFETY: the message is owned by this `FetchedMessages`, and is not used any more.
            unsafe { rd_kafka_message_destroy(message) };
        }
    }
}

/// An error that librdkafka reports in place of a message.
pub(crate) struct FetchError {
    pub(crate) error: KafkaError,
    /// librdkafka's text, prefixed with the partition that it is about.
    pub(crate) reason: String,
}

/// A message of librdkafka.
pub(crate) struct Message<'a>(NonNull<rd_kafka_message_s>, PhantomData<&'a ()>);

/// Identifies a topic while one of its messages lives or one of its partitions is assigned. The
/// pointer is compared, never dereferenced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TopicHandle(*mut rd_kafka_topic_s);

impl<'a> Message<'a> {
    /// Wraps a message that rdkafka has taken from the consumer's queue.
    pub(crate) fn borrowed(message: &'a BorrowedMessage<'_>) -> Self {
        // SAFETY: rdkafka's pointer is not null, and lives for as long as the message is borrowed.
        Self(unsafe { NonNull::new_unchecked(message.ptr()) }, PhantomData)
    }

    fn get(&self) -> &'a rd_kafka_message_s {
        // SAFETY: the message lives for `'a`, and nothing writes to it.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn topic_handle(&self) -> TopicHandle {
        TopicHandle(self.get().rkt)
    }

    /// Reads librdkafka's text for the error that this message stands for.
    fn reason(&self) -> String {
        // SAFETY: the message has an error. Its text ends with NUL and lives as long as the
        // message.
        let text = unsafe { CStr::from_ptr(rd_kafka_message_errstr(self.0.as_ptr())) };
        let text = text.to_string_lossy();
        match self.get().rkt.is_null() {
            true => text.into_owned(),
            false => format!("partition {} of `{}`: {text}", self.partition(), self.topic()),
        }
    }

    pub(crate) fn topic(&self) -> &'a str {
        // SAFETY: this is only called for messages that have a topic. Its name ends with NUL and
        // lives as long as the message.
        let name = unsafe { CStr::from_ptr(rd_kafka_topic_name(self.get().rkt)) };
        // Topic names in Kafka are ASCII.
        name.to_str().unwrap_or_default()
    }

    pub(crate) fn partition(&self) -> i32 {
        self.get().partition
    }

    pub(crate) fn offset(&self) -> i64 {
        self.get().offset
    }

    /// Reads the epoch of the leader that has appended the message, if the broker tells it.
    pub(crate) fn leader_epoch(&self) -> Option<i32> {
        // SAFETY: the message is alive.
        let epoch = unsafe { rd_kafka_message_leader_epoch(self.0.as_ptr()) };
        (epoch >= 0).then_some(epoch)
    }

    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        let message = self.get();
        // SAFETY: a non-null key has `key_len` bytes, which live as long as the message.
        (!message.key.is_null())
            .then(|| unsafe { slice::from_raw_parts(message.key.cast(), message.key_len) })
    }

    pub(crate) fn payload(&self) -> Option<&'a [u8]> {
        let message = self.get();
        // SAFETY: a non-null payload has `len` bytes, which live as long as the message.
        (!message.payload.is_null())
            .then(|| unsafe { slice::from_raw_parts(message.payload.cast(), message.len) })
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        let mut kind = Kind::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive, and `kind` lives during the call.
        let time = unsafe { rd_kafka_message_timestamp(self.0.as_ptr(), &mut kind) };
        match kind {
            _ if time == -1 => Timestamp::NotAvailable,
            Kind::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE => Timestamp::NotAvailable,
            Kind::RD_KAFKA_TIMESTAMP_CREATE_TIME => Timestamp::CreateTime(time),
            Kind::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME => Timestamp::LogAppendTime(time),
        }
    }

    /// Reads each header's name and value; see [`headers`](super::headers).
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        // SAFETY: the message lives for `'a`.
        unsafe { message_headers(self.0.as_ptr()) }
    }
}
