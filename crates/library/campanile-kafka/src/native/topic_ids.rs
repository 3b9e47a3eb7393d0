//! Requests for the ids of topics, which rdkafka lacks.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::bindings::{
    rd_kafka_AdminOptions_destroy, rd_kafka_AdminOptions_new, rd_kafka_AdminOptions_set_broker,
    rd_kafka_AdminOptions_set_request_timeout, rd_kafka_DescribeTopics,
    rd_kafka_DescribeTopics_result_topics, rd_kafka_TopicCollection_destroy,
    rd_kafka_TopicCollection_of_topic_names, rd_kafka_TopicDescription_error,
    rd_kafka_TopicDescription_name, rd_kafka_TopicDescription_t,
    rd_kafka_TopicDescription_topic_id, rd_kafka_Uuid_base64str, rd_kafka_admin_op_t as Operation,
    rd_kafka_error_code, rd_kafka_event_DescribeTopics_result, rd_kafka_event_destroy,
    rd_kafka_event_error, rd_kafka_event_t, rd_kafka_queue_cb_event_enable, rd_kafka_queue_destroy,
    rd_kafka_queue_new, rd_kafka_queue_poll, rd_kafka_queue_t, rd_kafka_resp_err_t as Code,
};
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, KafkaResult};

use super::fetch_queues::wake;
use super::{ERROR_LEN, broker_ids};
use crate::native::SourceWaker;

/// How librdkafka writes the id that brokers without ids of topics return.
const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// The id of each topic of a request, or an error about this topic. The brokers give a topic its id when it
/// is created, so a topic that is deleted and recreated has another one. `None`: the brokers are older than
/// Kafka 2.8 and have no ids.
pub(crate) type TopicIds = HashMap<String, KafkaResult<Option<Arc<str>>>>;

/// A request for the ids of topics. Dropping it abandons the request. Must be dropped before its client.
pub(crate) struct TopicIdRequest {
    queue: NonNull<rd_kafka_queue_t>,
    /// Woken by the response. Kept until the queue is destroyed.
    _waker: Option<SourceWaker>,
}

// SAFETY: a queue may be used and destroyed on any thread. It is not cloned.
unsafe impl Send for TopicIdRequest {}

impl TopicIdRequest {
    /// Sends a request for these topics, each of which is named once. It ends with an error after this
    /// timeout. `waker` is woken by the response. Consecutive attempts ask different brokers, since one may
    /// not answer.
    pub(crate) fn start<'a, C: ClientContext>(
        client: &Client<C>,
        topics: impl IntoIterator<Item = &'a str>,
        timeout: Duration,
        attempt: usize,
        waker: Option<SourceWaker>,
    ) -> Self {
        let brokers = broker_ids(client);
        let broker = brokers.get(attempt % brokers.len().max(1));
        let client = client.native_ptr();
        // A topic name contains no NUL byte.
        let names: Vec<CString> =
            topics.into_iter().filter_map(|name| CString::new(name).ok()).collect();
        let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let timeout = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        let mut text = [0; ERROR_LEN];
        // SAFETY: the client is borrowed, so its handle is alive. The names and their pointers live until
        // the collection has copied them. Options and collection are destroyed once the request has
        // copied them. The waker lives until `drop` has removed the callback.
        unsafe {
            let queue = rd_kafka_queue_new(client);
            if let Some(waker) = &waker {
                let waker = Arc::as_ptr(waker).cast_mut().cast();
                rd_kafka_queue_cb_event_enable(queue, Some(wake), waker);
            }
            let options =
                rd_kafka_AdminOptions_new(client, Operation::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS);
            rd_kafka_AdminOptions_set_request_timeout(
                options,
                timeout,
                text.as_mut_ptr(),
                text.len(),
            );
            if let Some(broker) = broker {
                let (text, len) = (text.as_mut_ptr(), text.len());
                rd_kafka_AdminOptions_set_broker(options, *broker, text, len);
            }
            let collection =
                rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
            rd_kafka_DescribeTopics(client, collection, options, queue);
            rd_kafka_TopicCollection_destroy(collection);
            rd_kafka_AdminOptions_destroy(options);
            let queue = NonNull::new(queue).expect("librdkafka returns a queue");
            Self { queue, _waker: waker }
        }
    }

    /// Waits for the response. librdkafka has one at the latest when the request has timed out.
    pub(crate) fn wait(&self) -> KafkaResult<TopicIds> {
        loop {
            if let Some(ids) = self.poll(Duration::from_secs(1)) {
                return ids;
            }
        }
    }

    /// Takes the response, for which it waits at most this long.
    pub(crate) fn poll(&self, timeout: Duration) -> Option<KafkaResult<TopicIds>> {
        let timeout = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive. A non-null event is owned by the caller, and is destroyed below,
        // after the response was copied.
        unsafe {
            let event = rd_kafka_queue_poll(self.queue.as_ptr(), timeout);
            if event.is_null() {
                return None;
            }
            let ids = topic_ids(event);
            rd_kafka_event_destroy(event);
            Some(ids)
        }
    }
}

impl Drop for TopicIdRequest {
    fn drop(&mut self) {
        // SAFETY: the queue is alive, and is not used any more. Without its callback it no longer refers
        // to the waker. A response that arrives later is dropped by librdkafka.
        unsafe {
            rd_kafka_queue_cb_event_enable(self.queue.as_ptr(), None, ptr::null_mut());
            rd_kafka_queue_destroy(self.queue.as_ptr());
        }
    }
}

/// Reads the ids of an event's topics.
///
/// # Safety
/// The event must be alive.
unsafe fn topic_ids(event: *mut rd_kafka_event_t) -> KafkaResult<TopicIds> {
    // SAFETY: the event is alive. Its result, and all that belongs to the result, live as long. A result
    // has as many topics as it says, each with a name that ends with NUL and an id.
    unsafe {
        let code = rd_kafka_event_error(event);
        let result = rd_kafka_event_DescribeTopics_result(event);
        if code != Code::RD_KAFKA_RESP_ERR_NO_ERROR || result.is_null() {
            return Err(KafkaError::MetadataFetch(code.into()));
        }
        let mut count = 0;
        let topics = rd_kafka_DescribeTopics_result_topics(result, &mut count);
        let topics: &[*const rd_kafka_TopicDescription_t] = match topics.is_null() {
            true => &[],
            false => slice::from_raw_parts(topics, count),
        };
        let id = |topic: *const rd_kafka_TopicDescription_t| {
            let name = text(rd_kafka_TopicDescription_name(topic));
            let error = rd_kafka_TopicDescription_error(topic);
            if !error.is_null() && rd_kafka_error_code(error) != Code::RD_KAFKA_RESP_ERR_NO_ERROR {
                let code = rd_kafka_error_code(error);
                return (name, Err(KafkaError::MetadataFetch(code.into())));
            }
            let id = text(rd_kafka_Uuid_base64str(rd_kafka_TopicDescription_topic_id(topic)));
            // Kafka's tools write ids with the characters that URLs allow.
            let has_id = id != NO_ID && !id.is_empty();
            (name, Ok(has_id.then(|| id.replace('+', "-").replace('/', "_").into())))
        };
        Ok(topics.iter().map(|topic| id(*topic)).collect())
    }
}

/// Copies a text of librdkafka.
///
/// # Safety
/// The text must be null, or end with NUL and be alive.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the text is alive and ends with NUL.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
