//! The tracing system of the process.

use std::sync::OnceLock;

use tracing::Span;

use super::TraceContext;
use crate::{ConfigError, Headers};

static TRACER: OnceLock<Box<dyn Tracer>> = OnceLock::new();

/// A tracing system, which relates spans of [`tracing`] to distributed traces.
///
/// All methods are called on the threads of the application, often while a future is polled, so they
/// must not block.
pub trait Tracer: Send + Sync {
    /// Relates the span of an attempt to the trace in its record's headers. Called by the Kafka driver
    /// before the span is entered.
    fn follow(&self, span: &Span, headers: &Headers);

    /// Returns the context of the current span, or `None` if there is no such span.
    ///
    /// It is the parent of the messages that a handler produces, and part of the entry's
    /// [details](crate::Details).
    fn current(&self) -> Option<TraceContext>;

    /// Returns the value of the header `tracestate` for the current span, or `None` if it is empty.
    fn current_state(&self) -> Option<String>;

    /// Links the current span, in which a request was answered as a duplicate, to the span of the run
    /// that has completed its key.
    fn link_completed(&self, run: &TraceContext);
}

/// Sets the tracing system of this process, once, before the first request.
///
/// # Errors
/// If it is already set.
pub fn set_tracer(tracer: impl Tracer + 'static) -> Result<(), ConfigError> {
    TRACER
        .set(Box::new(tracer))
        .map_err(|_| ConfigError::new("the tracer of this process is already set"))
}

/// Returns the tracing system, if one is set.
pub fn tracer() -> Option<&'static dyn Tracer> {
    TRACER.get().map(|tracer| &**tracer)
}
