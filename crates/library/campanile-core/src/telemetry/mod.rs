//! Metrics: the table of all instruments, and the handles that record their values.
//!
//! [`instruments`] defines each instrument once: name, unit, attributes, and when it counts. Values go to the
//! recorder of the crate [`metrics`](https://docs.rs/metrics), if the program has installed one.
//!
//! A handle is resolved when its owner is created (a layer, a keeper, a store, a consumer), or when
//! a partition is assigned, and never for each record. So a recorder must be installed before.

mod attributes;
mod handles;
mod instrument;
pub mod instruments;

pub use self::instrument::{Attribute, Instrument, InstrumentKind};
pub use self::instruments::INSTRUMENTS;
// For the code that counts.
#[doc(hidden)]
pub use self::{
    attributes::*,
    handles::{Counter, Family, Gauge, Histogram, ResultHistogram},
    instrument::Labels,
};

/// Returns the name of each histogram with the upper bounds of its buckets, for the configuration of
/// an exporter. Durations are in seconds.
pub fn buckets() -> impl Iterator<Item = (&'static str, &'static [f64])> {
    INSTRUMENTS.iter().filter_map(|instrument| match instrument.kind {
        InstrumentKind::Histogram(bounds) => Some((instrument.name, bounds)),
        InstrumentKind::Counter | InstrumentKind::Gauge => None,
    })
}
