//! Handles that do nothing, for programs without the feature `metrics`.

use std::marker::PhantomData;

use super::attributes::AttributeValue;
use super::instrument::{Instrument, Labels};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $name(());

        impl $name {
            /// Does nothing.
            pub fn new(_: &'static Instrument, _: Labels<'_>) -> Self {
                Self(())
            }
        }
    };
}

handle!(
    /// A counter.
    Counter
);
handle!(
    /// A gauge.
    Gauge
);
handle!(
    /// A histogram.
    Histogram
);

impl Counter {
    /// Does nothing.
    pub fn increment(&self, _: u64) {}
}

impl Gauge {
    /// Does nothing.
    pub fn set(&self, _: f64) {}

    /// Does nothing.
    pub fn increment(&self) {}

    /// Does nothing.
    pub fn decrement(&self) {}
}

impl Histogram {
    /// Does nothing.
    pub fn record(&self, _: f64) {}
}

/// The series of an instrument with one attribute of a fixed set of values.
#[derive(Debug)]
pub struct Family<V, H>(H, PhantomData<fn(V)>);

impl<V: AttributeValue, H: Default> Family<V, H> {
    /// Does nothing.
    pub fn new(_: &'static Instrument, _: Labels<'_>) -> Self {
        Self(H::default(), PhantomData)
    }

    /// Returns a handle that does nothing.
    pub fn of(&self, _: V) -> &H {
        &self.0
    }
}

/// A histogram of operations that may fail.
#[derive(Debug)]
pub struct ResultHistogram<E>(PhantomData<fn(E)>);

impl<E: AttributeValue> ResultHistogram<E> {
    /// Does nothing.
    pub fn new(_: &'static Instrument, _: Labels<'_>) -> Self {
        Self(PhantomData)
    }

    /// Does nothing.
    pub fn record(&self, _: Option<E>, _: f64) {}
}
