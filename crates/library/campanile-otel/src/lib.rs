//! Continues distributed traces of OpenTelemetry through Campanile: from a record's headers to the span
//! of its attempt, and from the handler to the messages that it produces.
//!
//! A program calls [`install`] once, and adds the layer of [`tracing_opentelemetry`] to its
//! subscriber:
//!
//! ```
//! use campanile_otel::Relation;
//! use opentelemetry::trace::TracerProvider;
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use tracing_subscriber::filter::LevelFilter;
//! use tracing_subscriber::prelude::*;
//!
//! # fn main() -> Result<(), campanile_core::BoxError> {
//! // add an exporter, such as `.with_batch_exporter(…)` with the one of `opentelemetry-otlp`
//! let provider = SdkTracerProvider::builder().build();
//! tracing_subscriber::registry()
//!     // the spans of attempts are at level DEBUG, unless `Consumer::with_span_level` says otherwise
//!     .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("billing")).with_filter(LevelFilter::DEBUG))
//!     .with(tracing_subscriber::fmt::layer().with_filter(LevelFilter::INFO))
//!     .init();
//! campanile_otel::install(Relation::default())?;
//! // … serve, and finally export the last spans
//! provider.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is traced
//! * The span of an attempt has the record's trace (the headers `traceparent` and `tracestate` of
//!   [W3C Trace Context](https://www.w3.org/TR/trace-context/)) as its parent and as a link; [`Relation`]
//!   has alternatives. The span of a batch links to the spans of its records.
//! * Outputs of a transaction, messages of the outbox, and what a handler passes to a `Publisher` get the
//!   headers of the span in which they are created, unless they have a `traceparent`. To give them to
//!   other messages, call [`Output::with_current_trace`](campanile_core::Output::with_current_trace).
//! * Copies in retry topics and dead letters keep the headers of their record. All attempts at a record,
//!   and what processes its dead letter, are thus siblings in the trace of its producer.
//! * The details of a key's entry contain the trace and the span of the last attempt. If a layer keeps the
//!   details of completed keys (`IdempotencyConfig::with_completed_details`), the span of a duplicate links
//!   to the attempt that has completed its key. This link has the attribute
//!   `campanile.link.kind = "completed_by"`.
//!
//! The driver's span follows version 1.42 of OpenTelemetry's semantic conventions for messaging. Its own
//! attribute is `campanile.duplicate`, which is `true` for a duplicate.
//!
//! # Requirements
//! The layer's [context activation](tracing_opentelemetry::OpenTelemetryLayer::with_context_activation)
//! must stay enabled, which is the default. Baggage is not read and not written.

mod relation;
mod tracer;

use campanile_core::{ConfigError, trace};

pub use self::relation::{Relation, follow};

/// Continues traces in all layers and consumers of this process. Call it once, before the first request.
///
/// # Errors
/// If it was called before, or another tracer is [set](trace::set_tracer).
pub fn install(relation: Relation) -> Result<(), ConfigError> {
    trace::set_tracer(tracer::OtelTracer::new(relation))
}
