//! OpenTelemetry as the tracing system of the process.

use campanile_core::Headers;
use campanile_core::trace::{TraceContext, Tracer};
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use tracing::Span;

use crate::relation::{Relation, follow, span_context};

/// The attribute that distinguishes links.
const LINK_KIND: &str = "campanile.link.kind";

pub(crate) struct OtelTracer {
    relation: Relation,
}

impl OtelTracer {
    pub(crate) fn new(relation: Relation) -> Self {
        Self { relation }
    }
}

/// The current span is that of OpenTelemetry's context and not of `tracing`, because a span that the
/// layer filters out has none of its own.
impl Tracer for OtelTracer {
    fn follow(&self, span: &Span, headers: &Headers) {
        follow(span, headers, self.relation);
    }

    fn current(&self) -> Option<TraceContext> {
        with_current(|current| {
            let trace_id = u128::from_be_bytes(current.trace_id().to_bytes());
            let span_id = u64::from_be_bytes(current.span_id().to_bytes());
            TraceContext::new(trace_id, span_id, current.trace_flags().to_u8())
        })
    }

    fn current_state(&self) -> Option<String> {
        with_current(|current| Some(current.trace_state().header()))
            .filter(|state| !state.is_empty())
    }

    fn link_completed(&self, run: &TraceContext) {
        Context::map_current(|context| {
            let attributes = vec![KeyValue::new(LINK_KIND, "completed_by")];
            context.span().add_link(span_context(run, Default::default()), attributes);
        });
    }
}

fn with_current<T>(f: impl FnOnce(&SpanContext) -> Option<T>) -> Option<T> {
    Context::map_current(|context| f(context.span().span_context()))
}
