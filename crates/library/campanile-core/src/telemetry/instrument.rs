//! The definition of an instrument.

/// The definition of one instrument.
#[derive(Debug)]
#[non_exhaustive]
pub struct Instrument {
    /// The name, as in OpenTelemetry.
    pub name: &'static str,
    /// The kind, with the buckets of a histogram.
    pub kind: InstrumentKind,
    /// The unit in UCUM's notation, as in OpenTelemetry: `s`, `By`, or what is counted, in braces.
    pub unit: &'static str,
    /// What is counted, and when.
    pub description: &'static str,
    /// The attributes. None contains a key, an offset or the text of an error.
    pub attributes: &'static [Attribute],
}

impl Instrument {
    /// Returns the name in Prometheus, as OpenTelemetry's exporters derive it: underscores instead of
    /// dots, the unit (`_seconds`, `_bytes`) and, for a counter, `_total`. The metrics of a histogram
    /// have `_bucket`, `_sum` and `_count` after it.
    pub fn prometheus_name(&self) -> String {
        let unit = match self.unit {
            "s" => "_seconds",
            "By" => "_bytes",
            _ => "",
        };
        let total = if self.kind == InstrumentKind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.name.replace('.', "_"))
    }
}

/// An attribute of an [`Instrument`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attribute {
    /// The name, as in OpenTelemetry. A label of Prometheus has underscores instead of dots.
    pub name: &'static str,
    /// All values. Empty for the namespaces, groups, topics and partitions of the program.
    pub values: &'static [&'static str],
}

/// The kind of an [`Instrument`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum InstrumentKind {
    /// A sum that only grows.
    Counter,
    /// The current value.
    Gauge,
    /// A distribution, with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// The values of some of an instrument's attributes.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

#[cfg(test)]
mod tests {
    use super::super::instruments::{BUFFERED_SIZE, REQUESTS, STORE_BATCHES, STORE_CALLS};
    use super::super::{INSTRUMENTS, buckets};
    use super::*;

    #[test]
    fn prometheus_name_has_unit_and_kind() {
        for (instrument, name) in [
            (&REQUESTS, "campanile_requests_total"),
            (&STORE_CALLS, "campanile_store_call_duration_seconds"),
            (&BUFFERED_SIZE, "campanile_consumer_buffered_size_bytes"),
            (&STORE_BATCHES, "campanile_store_batch_size"),
        ] {
            assert_eq!(instrument.prometheus_name(), name);
        }
    }

    #[test]
    fn buckets_are_those_of_every_histogram() {
        let is_histogram =
            |it: &&&Instrument| matches!(it.kind, InstrumentKind::Histogram([_, ..]));
        let histograms = INSTRUMENTS.iter().filter(is_histogram).map(|it| it.name);
        assert!(buckets().map(|(name, _)| name).eq(histograms));
        assert!(buckets().any(|(name, _)| name == STORE_CALLS.name));
    }
}
