//! Metrics: the table of all instruments, and the handles that record their values.
//!
//! [`instruments`] defines each instrument once: name, unit, attributes, and when it counts. With the
//! feature `metrics`, values go to the recorder of the crate
//! [`metrics`](https://docs.rs/metrics). Without it, the handles are empty types that do nothing, so that
//! the code that counts is the same in both cases.
//!
//! A handle is resolved when its owner is created (a layer, a keeper, a store, a consumer), or when
//! a partition is assigned, and never for each record. So a recorder must be installed before.

mod attributes;
#[cfg(not(feature = "metrics"))]
mod disabled;
mod instrument;
pub mod instruments;
#[cfg(feature = "metrics")]
mod recorded;

pub use self::instrument::{Attribute, Instrument, InstrumentKind};
pub use self::instruments::INSTRUMENTS;
// For the code that counts.
#[doc(hidden)]
pub use self::handles::*;

mod handles {
    pub use super::attributes::*;
    #[cfg(not(feature = "metrics"))]
    pub use super::disabled::{Counter, Family, Gauge, Histogram, ResultHistogram};
    pub use super::instrument::Labels;
    #[cfg(feature = "metrics")]
    pub use super::recorded::{Counter, Family, Gauge, Histogram, ResultHistogram};

    /// Whether values are recorded. For values that are determined only to be recorded.
    pub const IS_ENABLED: bool = cfg!(feature = "metrics");
}

/// Returns the name of each histogram with the upper bounds of its buckets, for the configuration of
/// an exporter. Durations are in seconds.
pub fn buckets() -> impl Iterator<Item = (&'static str, &'static [f64])> {
    INSTRUMENTS.iter().filter_map(|instrument| match instrument.kind {
        InstrumentKind::Histogram(bounds) => Some((instrument.name, bounds)),
        InstrumentKind::Counter | InstrumentKind::Gauge => None,
    })
}
