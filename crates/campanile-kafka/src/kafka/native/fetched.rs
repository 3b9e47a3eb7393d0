//! Queues of our own for what is fetched, and their messages.
//!
//! rdkafka's consumer takes each message off the consumer's queue as an event, with an allocation and
//! some readings of the clock. Here they come in batches. The consumer's queue is left with events, so
//! callbacks are served however much is fetched.

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
    rd_kafka_message_s, rd_kafka_message_timestamp, rd_kafka_queue_cb_event_enable,
    rd_kafka_queue_destroy, rd_kafka_queue_forward, rd_kafka_queue_get_partition,
    rd_kafka_queue_new, rd_kafka_queue_t, rd_kafka_resp_err_t as Code, rd_kafka_t,
    rd_kafka_timestamp_type_t as Kind, rd_kafka_topic_name, rd_kafka_topic_s,
};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;

use super::walk_of;

/// How many queues there are. By partition, as many partitions at least have records at the same time;
/// each costs memory for what is prefetched, and for one batch of a producer's at least.
pub(in crate::kafka) const QUEUES: usize = 16;

/// The queues. Closed, or before they are opened, they do nothing.
pub(in crate::kafka) struct Fetched {
    queues: [AtomicPtr<rd_kafka_queue_t>; QUEUES],
    /// Woken when there is something; kept until the queue is destroyed.
    waker: Arc<AtomicWaker>,
}

impl Fetched {
    /// Wakes this when something comes.
    pub(in crate::kafka) fn new(waker: Arc<AtomicWaker>) -> Self {
        Self { queues: Default::default(), waker }
    }

    /// Opens them. They must be closed before the consumer is dropped.
    pub(in crate::kafka) fn open<C: ConsumerContext>(&self, consumer: &BaseConsumer<C>) {
        for opened in &self.queues {
            // SAFETY: the consumer is borrowed, so its handle is alive. The queue is ours to destroy.
            let queue = unsafe { rd_kafka_queue_new(consumer.client().native_ptr()) };
            let waker = Arc::as_ptr(&self.waker).cast_mut().cast();
            // SAFETY: the queue is alive. The waker lives as long as this, and `close` takes the
            // callback away before.
            unsafe { rd_kafka_queue_cb_event_enable(queue, Some(wake), waker) };
            opened.store(queue, Ordering::Release);
        }
    }

    /// What is fetched of this partition comes by the queue with this index. To be told before it is assigned: then nothing
    /// of it goes elsewhere.
    pub(in crate::kafka) fn take_in<C: ConsumerContext>(
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
        // SAFETY: handle and name are alive during the call. The queue is a reference that is ours to
        // destroy, or null.
        let from = unsafe { rd_kafka_queue_get_partition(client, topic.as_ptr(), partition) };
        if from.is_null() {
            return;
        }
        // SAFETY: both are alive. The forwarding outlives the reference, which is not used any more.
        unsafe {
            rd_kafka_queue_forward(from, to);
            rd_kafka_queue_destroy(from);
        }
    }

    /// Takes up to `most` messages off the queue with this index, in the order of each partition.
    pub(in crate::kafka) fn take<'a>(
        &'a self,
        index: usize,
        batch: &'a mut Batch,
        most: usize,
    ) -> Drain<'a> {
        let queue = self.queues[index].load(Ordering::Acquire);
        batch.messages.resize(most, ptr::null_mut());
        let count = if queue.is_null() || most == 0 {
            0
        } else {
            // SAFETY: the queue is alive, and there is room for so many. Without a time-out the call
            // does not wait. The messages are ours to destroy.
            unsafe { rd_kafka_consume_batch_queue(queue, 0, batch.messages.as_mut_ptr(), most) }
        };
        // Negative for an error, of which there is none without a legacy consumer.
        batch.messages.truncate(usize::try_from(count).unwrap_or(0));
        Drain { batch, next: 0 }
    }

    /// Destroys them, with what is still in them.
    pub(in crate::kafka) fn close(&self) {
        for closed in &self.queues {
            let queue = closed.swap(ptr::null_mut(), Ordering::AcqRel);
            if !queue.is_null() {
                // SAFETY: it is alive, and nobody finds it any more. Without its callback it does not
                // refer to the waker any more.
                unsafe {
                    rd_kafka_queue_cb_event_enable(queue, None, ptr::null_mut());
                    rd_kafka_queue_destroy(queue);
                }
            }
        }
    }
}

/// Something is in the queue that was empty.
unsafe extern "C" fn wake(_: *mut rd_kafka_t, waker: *mut c_void) {
    // SAFETY: it is the waker that was given with this callback, and lives as long as that.
    let waker = unsafe { &*waker.cast::<AtomicWaker>() };
    waker.wake();
}

/// Where messages are put, again and again.
#[derive(Default)]
pub(in crate::kafka) struct Batch {
    messages: Vec<*mut rd_kafka_message_s>,
}

/// Messages that were taken. What is not looked at is dropped.
pub(in crate::kafka) struct Drain<'a> {
    batch: &'a mut Batch,
    next: usize,
}

impl Drain<'_> {
    pub(in crate::kafka) fn len(&self) -> usize {
        self.batch.messages.len()
    }

    /// The next message; an error if it stands for one.
    pub(in crate::kafka) fn next(&mut self) -> Option<Result<Message<'_>, FetchError>> {
        let &message = self.batch.messages.get(self.next)?;
        self.next += 1;
        // SAFETY: what librdkafka has put there is not null, and lives until this is dropped.
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

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        for message in self.batch.messages.drain(..) {
            // SAFETY: each was given to us to be destroyed, and is not used any more.
            unsafe { rd_kafka_message_destroy(message) };
        }
    }
}

/// What librdkafka reports in the place of a message.
pub(in crate::kafka) struct FetchError {
    pub(in crate::kafka) error: KafkaError,
    /// In librdkafka's words, behind the partition that it is about.
    pub(in crate::kafka) reason: String,
}

/// A message of librdkafka's.
pub(in crate::kafka) struct Message<'a>(NonNull<rd_kafka_message_s>, PhantomData<&'a ()>);

/// Names a topic as long as one of its messages lives, or one of its partitions is assigned; compared,
/// never followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::kafka) struct TopicHandle(*mut rd_kafka_topic_s);

impl<'a> Message<'a> {
    /// One that rdkafka has taken from the consumer's queue.
    pub(in crate::kafka) fn borrowed(message: &'a BorrowedMessage<'_>) -> Self {
        // SAFETY: rdkafka's pointer is not null, and lives as long as the message is borrowed.
        Self(unsafe { NonNull::new_unchecked(message.ptr()) }, PhantomData)
    }

    fn get(&self) -> &'a rd_kafka_message_s {
        // SAFETY: it lives for `'a`, and nobody writes to it.
        unsafe { self.0.as_ref() }
    }

    pub(in crate::kafka) fn topic_handle(&self) -> TopicHandle {
        TopicHandle(self.get().rkt)
    }

    /// What librdkafka says of the error that this message stands for.
    fn reason(&self) -> String {
        // SAFETY: the message has an error, whose text ends with NUL and lives as long as the message.
        let text = unsafe { CStr::from_ptr(rd_kafka_message_errstr(self.0.as_ptr())) };
        let text = text.to_string_lossy();
        match self.get().rkt.is_null() {
            true => text.into_owned(),
            false => format!("partition {} of `{}`: {text}", self.partition(), self.topic()),
        }
    }

    /// The topic's name.
    pub(in crate::kafka) fn topic(&self) -> &'a str {
        // SAFETY: a message that is asked for its topic has one, whose name ends with NUL and lives as long.
        let name = unsafe { CStr::from_ptr(rd_kafka_topic_name(self.get().rkt)) };
        // Kafka's names of topics are ASCII.
        name.to_str().unwrap_or_default()
    }

    pub(in crate::kafka) fn partition(&self) -> i32 {
        self.get().partition
    }

    pub(in crate::kafka) fn offset(&self) -> i64 {
        self.get().offset
    }

    pub(in crate::kafka) fn key(&self) -> Option<&'a [u8]> {
        let message = self.get();
        // SAFETY: a key that is not null has so many bytes, which live as long as the message.
        (!message.key.is_null())
            .then(|| unsafe { slice::from_raw_parts(message.key.cast(), message.key_len) })
    }

    pub(in crate::kafka) fn payload(&self) -> Option<&'a [u8]> {
        let message = self.get();
        // SAFETY: as a key's.
        (!message.payload.is_null())
            .then(|| unsafe { slice::from_raw_parts(message.payload.cast(), message.len) })
    }

    pub(in crate::kafka) fn timestamp(&self) -> Timestamp {
        let mut kind = Kind::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive, and `kind` is during the call.
        let time = unsafe { rd_kafka_message_timestamp(self.0.as_ptr(), &mut kind) };
        match kind {
            _ if time == -1 => Timestamp::NotAvailable,
            Kind::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE => Timestamp::NotAvailable,
            Kind::RD_KAFKA_TIMESTAMP_CREATE_TIME => Timestamp::CreateTime(time),
            Kind::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME => Timestamp::LogAppendTime(time),
        }
    }

    /// Each header's name and value; see [`headers`](super::headers).
    pub(in crate::kafka) fn headers(
        &self,
    ) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        // SAFETY: the message lives for `'a`.
        unsafe { walk_of(self.0.as_ptr()) }
    }
}
