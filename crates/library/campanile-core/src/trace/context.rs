//! The position of a span in a distributed trace.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::str::FromStr;

use super::tracer;
use crate::{ConfigError, Headers};

/// A trace and a span in it, as the header `traceparent` of the
/// [W3C Trace Context](https://www.w3.org/TR/trace-context/) carries them.
///
/// Displays as the value of the header, in version 00, and parses from it.
///
/// ```
/// use campanile_core::TraceContext;
///
/// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let trace: TraceContext = header.parse()?;
/// assert_eq!(trace.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
/// assert_eq!(trace.flags(), 1);
/// assert_eq!(trace.to_string(), header);
/// # Ok::<(), campanile_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: NonZeroU128,
    span_id: NonZeroU64,
    flags: u8,
}

impl TraceContext {
    /// The name of the header.
    pub const HEADER: &'static str = "traceparent";

    /// The name of the header with further data of tracing systems.
    pub const STATE_HEADER: &'static str = "tracestate";

    /// Creates the context of a span, or `None` if one of the identifiers is zero, which the
    /// standard does not allow.
    pub const fn new(trace_id: u128, span_id: u64, flags: u8) -> Option<Self> {
        match (NonZeroU128::new(trace_id), NonZeroU64::new(span_id)) {
            (Some(trace_id), Some(span_id)) => Some(Self { trace_id, span_id, flags }),
            _ => None,
        }
    }

    /// Reads the context from the headers of a record. `None` means that there is no header
    /// `traceparent`, or that its value is not valid.
    pub fn from_headers(headers: &Headers) -> Option<Self> {
        headers.get_str(Self::HEADER)?.parse().ok()
    }

    /// Returns the context of the current span, if the process has a [`Tracer`](super::Tracer).
    pub fn current() -> Option<Self> {
        tracer()?.current()
    }

    /// Returns the identifier of the trace.
    pub const fn trace_id(&self) -> u128 {
        self.trace_id.get()
    }

    /// Returns the identifier of the span.
    pub const fn span_id(&self) -> u64 {
        self.span_id.get()
    }

    /// Returns the trace flags. The lowest bit is set if the trace may have been recorded.
    pub const fn flags(&self) -> u8 {
        self.flags
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceContext({self})")
    }
}

impl FromStr for TraceContext {
    type Err = ConfigError;

    /// A later version than 00 may have more fields after these four.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let parse = || {
            let mut fields = text.splitn(5, '-');
            let version = u8::try_from(lower_hex(fields.next()?, 2)?).ok()?;
            let trace_id = lower_hex(fields.next()?, 32)?;
            let span_id = u64::try_from(lower_hex(fields.next()?, 16)?).ok()?;
            let flags = u8::try_from(lower_hex(fields.next()?, 2)?).ok()?;
            let is_known = version < 0xFF && (version > 0 || fields.next().is_none());
            is_known.then(|| Self::new(trace_id, span_id, flags))?
        };
        parse().ok_or_else(|| ConfigError::new("the text is not a value of the header traceparent"))
    }
}

/// Parses exactly this many lowercase hexadecimal digits, as the standard requires.
fn lower_hex(text: &str, digits: usize) -> Option<u128> {
    let is_lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == digits && text.bytes().all(is_lower))
        .then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Record;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    #[test]
    fn valid_header_round_trips() {
        let record = Record::builder("t", 0, 0).header(TraceContext::HEADER, VALID).build();
        let trace = TraceContext::from_headers(record.headers()).unwrap();
        assert_eq!(trace.to_string(), VALID);
        assert_eq!(trace.flags(), 0);
    }

    #[test]
    fn context_has_the_identifiers_and_flags_of_its_span() {
        let trace = |flags| TraceContext::new(5, 6, flags).unwrap();
        assert_eq!((trace(7).trace_id(), trace(7).span_id(), trace(7).flags()), (5, 6, 7));
        assert_eq!((TraceContext::new(0, 6, 0), TraceContext::new(5, 0, 0)), (None, None));
    }

    #[test]
    fn later_version_may_have_more_fields() {
        let later = VALID.replacen("00-", "cc-", 1) + "-more-fields";
        assert_eq!(later.parse::<TraceContext>().unwrap().to_string(), VALID);
    }

    #[test]
    fn invalid_headers_are_rejected() {
        for invalid in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-00",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
        ] {
            assert!(invalid.parse::<TraceContext>().is_err(), "{invalid}");
        }
    }
}
