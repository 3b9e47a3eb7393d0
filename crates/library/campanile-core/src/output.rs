//! Messages that a handler produces.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::trace::tracer;
use crate::{Timestamp, TraceContext};

/// A message to produce. Its partition is derived from its key, as Kafka's own clients do.
///
/// `Debug` prints only the topic.
///
/// ```
/// use campanile_core::Output;
///
/// let invoice = Output::to("invoices").key("account-7").payload("100").header("currency", "EUR");
/// assert_eq!(invoice.key.as_deref(), Some(&b"account-7"[..]));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Output {
    /// The topic.
    pub topic: Arc<str>,
    /// The key, from which the partition is derived. `None` means any partition.
    pub key: Option<Bytes>,
    /// The payload. `None` is a tombstone.
    pub payload: Option<Bytes>,
    /// The timestamp. `None` means the time at which the message is produced.
    pub timestamp: Option<Timestamp>,
    /// The headers, in order. A name may occur more than once, and a value may be null.
    pub headers: Vec<(String, Option<Bytes>)>,
}

impl Output {
    /// Creates a message for this topic, without a key and payload.
    pub fn to(topic: impl Into<Arc<str>>) -> Self {
        let topic = topic.into();
        Self { topic, key: None, payload: None, timestamp: None, headers: Vec::new() }
    }

    /// Sets the key. Default: none, so the message goes to any partition.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the payload. Default: none, which is a tombstone.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Appends a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Appends a header with a null value.
    pub fn null_header(mut self, name: impl Into<String>) -> Self {
        self.headers.push((name.into(), None));
        self
    }

    /// Appends the headers `traceparent` and `tracestate` of the current span, if the process has a
    /// [`Tracer`](crate::trace::Tracer) and the message has no header `traceparent` yet.
    ///
    /// Outputs of a transaction, messages of the outbox, and what a `Publisher` is called with get
    /// these headers without this call.
    pub fn with_current_trace(mut self) -> Self {
        if let Some(tracer) = tracer()
            && self.headers.iter().all(|(name, _)| name != TraceContext::HEADER)
            && let Some(trace) = tracer.current()
        {
            // A state without its `traceparent` belongs to no trace.
            self.headers.retain(|(name, _)| name != TraceContext::STATE_HEADER);
            self = self.header(TraceContext::HEADER, trace.to_string());
            if let Some(state) = tracer.current_state() {
                self = self.header(TraceContext::STATE_HEADER, state);
            }
        }
        self
    }

    /// Sets the timestamp, in whole milliseconds. Default: the time at which the message is
    /// produced.
    ///
    /// The brokers measure the topic's retention from the timestamp, and soon delete an old message.
    /// Put the time of a message that is to be kept for longer into a header.
    pub fn timestamp(mut self, timestamp: Timestamp) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Estimates the memory usage, in bytes.
    pub fn size(&self) -> usize {
        let part = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let header = |(name, value): &(String, _)| size_of_val(name) + name.len() + part(value);
        let headers: usize = self.headers.iter().map(header).sum();
        size_of::<Self>() + part(&self.key) + part(&self.payload) + headers
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Output({})", self.topic)
    }
}

#[cfg(test)]
mod tests {
    use tracing::Span;

    use super::*;
    use crate::Headers;
    use crate::trace::{Tracer, set_tracer};

    #[test]
    fn size_counts_all_parts() {
        let empty = || Output::to("t");
        assert_eq!(empty().size(), size_of::<Output>());
        let header = size_of::<String>();
        let full = empty().key("k").payload("pp").header("abc", "defg").null_header("hijklm");
        assert_eq!(full.size(), empty().size() + 1 + 2 + 3 + 4 + 6 + 2 * header);
    }

    #[test]
    fn output_contains_what_was_set() {
        let timestamp = Timestamp::CreateTime(std::time::SystemTime::UNIX_EPOCH);
        let output = Output::to("t").header("a", "1").null_header("b").timestamp(timestamp);
        let headers = [("a".to_owned(), Some(Bytes::from("1"))), ("b".to_owned(), None)];
        assert_eq!((output.timestamp, &output.headers[..]), (Some(timestamp), &headers[..]));
    }

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// A tracer with one span, which is always the current one.
    struct OneSpan;

    impl Tracer for OneSpan {
        fn follow(&self, _: &Span, _: &Headers) {}

        fn current(&self) -> Option<TraceContext> {
            TRACE.parse().ok()
        }

        fn current_state(&self) -> Option<String> {
            Some("a=1".to_owned())
        }

        fn link_completed(&self, _: &TraceContext) {}
    }

    /// The only test of this process that sets the tracer.
    #[test]
    fn current_trace_replaces_a_state_and_never_a_trace() {
        let texts = |output: Output| -> Vec<(String, Bytes)> {
            let value = |(name, value): (String, Option<Bytes>)| Some((name, value?));
            output.with_current_trace().headers.into_iter().filter_map(value).collect()
        };
        assert_eq!((TraceContext::current(), texts(Output::to("t"))), (None, vec![]));
        set_tracer(OneSpan).unwrap();
        assert!(set_tracer(OneSpan).is_err());
        assert_eq!(TraceContext::current(), TRACE.parse().ok());
        let header = |name: &str, value: &'static str| (name.to_owned(), Bytes::from(value));
        let traced = vec![header("traceparent", TRACE), header("tracestate", "a=1")];
        assert_eq!(texts(Output::to("t")), traced);
        assert_eq!(texts(Output::to("t").header("tracestate", "b=2")), traced);
        let other = || Output::to("t").header("traceparent", "x").header("tracestate", "b=2");
        assert_eq!(texts(other()), [header("traceparent", "x"), header("tracestate", "b=2")]);
    }
}
