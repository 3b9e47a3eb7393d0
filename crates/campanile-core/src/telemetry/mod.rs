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

#[doc(hidden)]
pub use self::attributes::{
    AttributeValue, CacheResult, DeliveryError, DuplicateCause, ErrorType, LockLoss, LogChangeKind,
    ObservedOrigin, ObservedVerdict, PartitionState, PauseCause, RebalanceKind, RecordOutcome,
    RedisLoss, RequestOutcome, SettlementKind, StoreErrorType, StoreOperation, UnguardedCause,
};
#[cfg(not(feature = "metrics"))]
#[doc(hidden)]
pub use self::disabled::{Counter, Family, Gauge, Histogram, ResultHistogram};
#[doc(hidden)]
pub use self::instrument::Labels;
pub use self::instrument::{Attribute, Instrument, InstrumentKind};
pub use self::instruments::INSTRUMENTS;
#[cfg(feature = "metrics")]
#[doc(hidden)]
pub use self::recorded::{Counter, Family, Gauge, Histogram, ResultHistogram};

/// Whether values are recorded. For values that are determined only to be recorded.
#[doc(hidden)]
pub const IS_ENABLED: bool = cfg!(feature = "metrics");

/// Returns the name of each histogram with the upper bounds of its buckets, for the configuration of
/// an exporter. Durations are in seconds.
pub fn buckets() -> impl Iterator<Item = (&'static str, &'static [f64])> {
    INSTRUMENTS.iter().filter_map(|instrument| match instrument.kind {
        InstrumentKind::Histogram(bounds) => Some((instrument.name, bounds)),
        InstrumentKind::Counter | InstrumentKind::Gauge => None,
    })
}
