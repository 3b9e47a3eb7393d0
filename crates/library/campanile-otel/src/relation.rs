//! The relation of a span to the trace in a record's headers.

use std::str::FromStr;

use campanile_core::{Headers, TraceContext};
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// How the span of an attempt is related to the trace in its record's headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relation {
    /// The span belongs to the trace of the record's producer, and has a link to the producer's span, as
    /// OpenTelemetry's conventions recommend for messages that are processed one by one. The default.
    #[default]
    ParentAndLink,
    /// The span belongs to the trace of the record's producer.
    Parent,
    /// The span starts a trace of its own, with a link to the producer's span. For producers whose traces
    /// would grow too large, such as one that sends many records in one span.
    Link,
}

/// Relates a span to the trace in these headers. Without a valid `traceparent`, does nothing.
///
/// Consumers call it for their spans. Call it in a consumer loop of your own.
///
/// A parent can be set only before the span is first entered.
pub fn follow(span: &Span, headers: &Headers, relation: Relation) {
    let Some(remote) = remote_context(headers) else {
        return;
    };
    if relation != Relation::Link {
        // Fails if the span is not exported at all.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote.clone()));
    }
    if relation != Relation::Parent {
        span.add_link(remote);
    }
}

fn remote_context(headers: &Headers) -> Option<SpanContext> {
    let trace = TraceContext::from_headers(headers)?;
    let state = headers.get_str(TraceContext::STATE_HEADER);
    // By the standard, an invalid state does not invalidate the trace.
    let state = state.and_then(|state| TraceState::from_str(state).ok());
    Some(span_context(&trace, state.unwrap_or_default()))
}

pub(crate) fn span_context(trace: &TraceContext, state: TraceState) -> SpanContext {
    let (trace_id, span_id) = (TraceId::from(trace.trace_id()), SpanId::from(trace.span_id()));
    SpanContext::new(trace_id, span_id, TraceFlags::new(trace.flags()), true, state)
}
