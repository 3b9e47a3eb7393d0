//! Handles that record through the crate `metrics`.

use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;

use metrics::{Key, KeyName, Label, Level, Metadata, SharedString, Unit, with_recorder};

use super::attributes::AttributeValue;
use super::instrument::{Instrument, Labels};

static METADATA: Metadata<'static> = Metadata::new("campanile", Level::INFO, None);

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $describe:ident, $register:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(metrics::$name);

        impl $name {
            /// Describes the instrument, and resolves the series with these attributes.
            pub fn new(instrument: &'static Instrument, labels: Labels<'_>) -> Self {
                let name = KeyName::from_const_str(instrument.name);
                let label = |&(key, value): &(&'static str, &str)| Label::new(key, value.to_owned());
                let labels: Vec<Label> = labels.iter().map(label).collect();
                let key = Key::from_parts(name.clone(), labels);
                let description = SharedString::const_str(instrument.description);
                with_recorder(|recorder| {
                    recorder.$describe(name, Some(unit_of(instrument)), description);
                    Self(recorder.$register(&key, &METADATA))
                })
            }
        }

        impl From<(&'static Instrument, Labels<'_>)> for $name {
            fn from((instrument, labels): (&'static Instrument, Labels<'_>)) -> Self {
                Self::new(instrument, labels)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}

handle!(
    /// A counter.
    Counter, describe_counter, register_counter
);
handle!(
    /// A gauge. Several owners can share one series if they use only `increment` and `decrement`.
    Gauge, describe_gauge, register_gauge
);
handle!(
    /// A histogram.
    Histogram, describe_histogram, register_histogram
);

impl Counter {
    /// Adds to the counter.
    pub fn increment(&self, by: u64) {
        self.0.increment(by);
    }
}

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.0.set(value);
    }

    /// Adds one.
    pub fn increment(&self) {
        self.0.increment(1.0);
    }

    /// Subtracts one.
    pub fn decrement(&self) {
        self.0.decrement(1.0);
    }
}

impl Histogram {
    /// Records a value, a duration in seconds.
    pub fn record(&self, value: f64) {
        self.0.record(value);
    }
}

fn unit_of(instrument: &Instrument) -> Unit {
    match instrument.unit {
        "s" => Unit::Seconds,
        "By" => Unit::Bytes,
        _ => Unit::Count,
    }
}

/// The series of an instrument with one attribute of a fixed set of values. All of them exist from the
/// start, so that the first event is an increase.
pub struct Family<V, H>(Box<[H]>, PhantomData<fn(V)>);

impl<V: AttributeValue, H: for<'a> From<(&'static Instrument, Labels<'a>)>> Family<V, H> {
    /// Resolves the series with these attributes and each value.
    pub fn new(instrument: &'static Instrument, labels: Labels<'_>) -> Self {
        let series = |value: &&'static str| {
            let labels = [labels, &[(V::ATTRIBUTE.name, *value)]].concat();
            H::from((instrument, &labels))
        };
        Self(V::ATTRIBUTE.values.iter().map(series).collect(), PhantomData)
    }

    /// Returns the series of this value.
    pub fn of(&self, value: V) -> &H {
        &self.0[value.index()]
    }
}

impl<V, H> fmt::Debug for Family<V, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Family")
    }
}

/// A histogram of operations that may fail. Those that succeed have no attribute for an error. The
/// series of an error is resolved when the error first occurs: a histogram has many buckets.
pub struct ResultHistogram<E> {
    succeeded: Histogram,
    failed: Box<[OnceLock<Histogram>]>,
    instrument: &'static Instrument,
    labels: Vec<(&'static str, String)>,
    error: PhantomData<fn(E)>,
}

impl<E: AttributeValue> ResultHistogram<E> {
    /// Resolves the series of operations that succeed.
    pub fn new(instrument: &'static Instrument, labels: Labels<'_>) -> Self {
        Self {
            succeeded: Histogram::new(instrument, labels),
            failed: E::ATTRIBUTE.values.iter().map(|_| OnceLock::new()).collect(),
            instrument,
            labels: labels.iter().map(|&(key, value)| (key, value.to_owned())).collect(),
            error: PhantomData,
        }
    }

    /// Records the duration of an operation, in seconds.
    pub fn record(&self, error: Option<E>, seconds: f64) {
        match error {
            None => self.succeeded.record(seconds),
            Some(error) => {
                self.failed[error.index()].get_or_init(|| self.of(error)).record(seconds)
            }
        }
    }

    fn of(&self, error: E) -> Histogram {
        let labels = self.labels.iter().map(|(key, value)| (*key, value.as_str()));
        let error = E::ATTRIBUTE.values[error.index()];
        let labels: Vec<_> = labels.chain([(E::ATTRIBUTE.name, error)]).collect();
        Histogram::new(self.instrument, &labels)
    }
}

impl<E> fmt::Debug for ResultHistogram<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResultHistogram")
    }
}

#[cfg(test)]
mod tests {
    use metrics::with_local_recorder;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::super::instruments::{
        BUFFERED_SIZE, NAMESPACE, SETTLEMENTS_REFUSED, STORE_BATCHES, STORE_CALLS, STORE_ERRORS,
    };
    use super::super::{SettlementKind, StoreErrorType};
    use super::*;

    /// Returns the samples that were recorded, without those of quantiles, in order.
    fn samples(record: impl FnOnce()) -> Vec<String> {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        with_local_recorder(&recorder, record);
        let text = handle.render();
        let is_sample = |line: &&str| !line.is_empty() && !line.contains("quantile");
        let mut samples: Vec<_> = text.lines().filter(is_sample).map(ToOwned::to_owned).collect();
        samples.sort_unstable();
        samples
    }

    #[test]
    fn every_value_of_a_family_exists_from_the_start() {
        let samples = samples(|| {
            let labels: Labels<'_> = &[(NAMESPACE, "n")];
            let refused: Family<SettlementKind, Counter> =
                Family::new(&SETTLEMENTS_REFUSED, labels);
            refused.of(SettlementKind::Release).increment(2);
        });
        let sample = |kind, value| {
            format!(
                "campanile_settlements_refused{{campanile_namespace=\"n\",\
                 campanile_settlement=\"{kind}\"}} {value}"
            )
        };
        for expected in
            [sample("complete", 0), sample("fail", 0), sample("release", 2), sample("give_up", 0)]
        {
            assert!(samples.contains(&expected), "{expected} is not in {samples:#?}");
        }
    }

    #[test]
    fn gauge_is_set_and_counts_its_owners() {
        let samples = samples(|| {
            let gauge = Gauge::new(&BUFFERED_SIZE, &[]);
            gauge.set(5.0);
            gauge.increment();
            gauge.increment();
            gauge.decrement();
        });
        assert!(samples.contains(&"campanile_consumer_buffered_size 6".to_owned()), "{samples:#?}");
    }

    #[test]
    fn series_of_an_error_exists_once_it_has_occurred() {
        let samples = samples(|| {
            let calls: ResultHistogram<StoreErrorType> = ResultHistogram::new(&STORE_CALLS, &[]);
            calls.record(None, 0.5);
            calls.record(Some(StoreErrorType::Timeout), 2.0);
            calls.record(Some(StoreErrorType::Timeout), 3.0);
        });
        let sums: Vec<_> = samples.iter().filter(|sample| sample.contains("_sum")).collect();
        assert_eq!(
            sums,
            [
                "campanile_store_call_duration_sum 0.5",
                "campanile_store_call_duration_sum{error_type=\"timeout\"} 5"
            ]
        );
    }

    #[test]
    fn unit_is_that_of_the_instrument() {
        for (instrument, unit) in [
            (&STORE_CALLS, Unit::Seconds),
            (&BUFFERED_SIZE, Unit::Bytes),
            (&STORE_BATCHES, Unit::Count),
            (&STORE_ERRORS, Unit::Count),
        ] {
            assert_eq!(unit_of(instrument), unit, "{}", instrument.name);
        }
    }
}
