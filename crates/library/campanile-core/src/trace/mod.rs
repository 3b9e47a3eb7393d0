//! Distributed traces: their context in a record's headers, and the tracing system that continues
//! them.
//!
//! Without a [`Tracer`], nothing is traced, except that an entry's [details](crate::Details) contain
//! the trace of its record's headers. The crate `campanile-otel` has a tracer for OpenTelemetry.

mod context;
mod tracer;

pub use self::context::TraceContext;
#[doc(hidden)]
pub use self::tracer::tracer;
pub use self::tracer::{Tracer, set_tracer};
