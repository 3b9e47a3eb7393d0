//! Which records are processed one after the other.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};

use campanile_core::{KeyExtractor, Record};

use crate::error::panic_text;

/// Which records of a partition are processed one after the other, in their order; all others side
/// by side. Given to [`Consumer::with_order`](crate::Consumer::with_order).
///
/// ```
/// use campanile_core::{ConfigError, Record, key};
/// use campanile_kafka::{Consumer, ConsumerConfig, Order};
///
/// # fn main() -> Result<(), ConfigError> {
/// let config = ConsumerConfig::new("localhost:9092", "billing");
/// let consumer = Consumer::new(config)?.subscribe(["payments"]);
/// // in each partition, the records of an account one after the other
/// let consumer = consumer.with_order(Order::by(key::header("account")));
/// # let _ = consumer;
/// # Ok(())
/// # }
/// ```
///
/// Records of different partitions are always processed side by side: Kafka itself knows no order
/// between them. So what is to be in order must be in one partition, as records with the same record
/// key are by default: between processes the order is that of the partitions alone, of which each
/// belongs to one process at a time. Copies in [retry topics](crate::RetryTopics) are processed by
/// partition.
///
/// # What it costs
/// [`by_key`](Self::by_key) and [`by`](Self::by) hash each record's key once, and keep some hundred
/// bytes for each key that has records in memory, which the [budget](crate::Consumer::with_budget)
/// bounds by its number of records; nothing is kept of other keys. [`none`](Self::none) keeps as much
/// for each record, [`by_partition`](Self::by_partition) for each partition.
///
/// # How far ahead
/// A partition's offset is committed up to its oldest record that is not finished. With
/// [`by_key`](Self::by_key), [`by`](Self::by) and [`none`](Self::none), others go on behind one that
/// takes long or waits: as many as the [budget](crate::Consumer::with_budget) has records, counted
/// from that one. Then its partition waits for it. So many at most are read again after a crash, and
/// answered as duplicates.
pub struct Order(Kind);

enum Kind {
    Partition,
    Key(RandomState),
    By(Box<dyn Fn(&Record) -> OrderKey + Send + Sync>),
    None,
}

/// Records of a partition with the same number are processed in order.
pub(crate) type OrderKey = u64;

/// The number of records that no key tells apart.
pub(crate) const PARTITION: OrderKey = 0;

/// How a record's number is found.
pub(crate) enum Keying {
    /// This is it. `None`: the record is processed beside all others.
    Key(Option<OrderKey>),
    /// By [`Order::extract`], which is user code.
    Extract,
}

impl Order {
    /// The whole partition: each record once the one before it is finished. The default, because it
    /// is what Kafka promises.
    ///
    /// One record that takes long, waits for its next attempt or for a lock holds up its partition.
    pub fn by_partition() -> Self {
        Self(Kind::Partition)
    }

    /// Records with the same record key. Those without a key are in order among themselves.
    ///
    /// Keys that share a number of 64 bits, which happens by chance, are in order, too.
    pub fn by_key() -> Self {
        Self(Kind::Key(RandomState::new()))
    }

    /// Records with the same key of this extractor: a header, or what a closure makes of the record.
    /// Those for which it finds none, gives an error or panics are in order among themselves.
    ///
    /// With the extractor of the idempotency layer, a duplicate is met after its original is
    /// finished, and never waits for its lock in this process.
    pub fn by(key: impl KeyExtractor<Record> + Send + Sync + 'static) -> Self {
        let state = RandomState::new();
        Self(Kind::By(Box::new(move |record| {
            match catch_unwind(AssertUnwindSafe(|| key.extract(record))) {
                Ok(Ok(Some(key))) => state.hash_one(key.as_bytes()),
                Ok(Ok(None) | Err(_)) => PARTITION,
                Err(panic) => {
                    let (record, error) = (record.coordinates(), panic_text(panic));
                    tracing::error!(%record, error, "the order's extractor panicked, as if it found no key");
                    PARTITION
                }
            }
        })))
    }

    /// All side by side.
    pub fn none() -> Self {
        Self(Kind::None)
    }

    /// Returns a record's number, or that the extractor has to find it.
    pub(crate) fn keying(&self, record: &Record) -> Keying {
        match &self.0 {
            Kind::Partition => Keying::Key(Some(PARTITION)),
            Kind::Key(state) => {
                let key = record.key().map_or(PARTITION, |key| state.hash_one(&**key));
                Keying::Key(Some(key))
            }
            Kind::By(_) => Keying::Extract,
            Kind::None => Keying::Key(None),
        }
    }

    /// Runs the extractor, where there is one. Never panics.
    pub(crate) fn extract(&self, record: &Record) -> OrderKey {
        match &self.0 {
            Kind::By(extract) => extract(record),
            Kind::Partition | Kind::Key(_) | Kind::None => PARTITION,
        }
    }
}

/// [`by_partition`](Self::by_partition).
impl Default for Order {
    fn default() -> Self {
        Self::by_partition()
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Partition => "Order::by_partition",
            Kind::Key(_) => "Order::by_key",
            Kind::By(_) => "Order::by",
            Kind::None => "Order::none",
        })
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::key;

    use super::*;

    fn record(key: Option<&'static str>, account: &'static str) -> Record {
        let record = Record::builder("t", 0, 0).header("account", account);
        match key {
            Some(key) => record.key(key).build(),
            None => record.build(),
        }
    }

    /// The record's number, whichever way it is found.
    fn number(order: &Order, record: &Record) -> Option<OrderKey> {
        match order.keying(record) {
            Keying::Key(key) => key,
            Keying::Extract => Some(order.extract(record)),
        }
    }

    #[test]
    fn by_key_orders_records_of_one_key_and_those_without() {
        let order = Order::by_key();
        let key = |key| number(&order, &record(key, "a"));
        assert_eq!(key(Some("k")), key(Some("k")));
        assert_ne!(key(Some("k")), key(Some("l")));
        assert_eq!(key(None), Some(PARTITION));
    }

    #[test]
    fn by_extractor_orders_what_it_finds_equal() {
        let order = Order::by(key::header("account"));
        let number_of = |key, account| number(&order, &record(key, account));
        assert_eq!(number_of(Some("k"), "a"), number_of(Some("l"), "a"));
        assert_ne!(number_of(None, "a"), number_of(None, "b"));
        let refuses = Order::by(|_: &Record| Err::<String, _>("no"));
        assert_eq!(number(&refuses, &record(None, "a")), Some(PARTITION));
        let panics = Order::by(|_: &Record| -> Option<String> { panic!("a panic of this test") });
        assert_eq!(number(&panics, &record(None, "a")), Some(PARTITION));
    }

    #[test]
    fn none_orders_nothing_and_by_partition_everything() {
        assert_eq!(number(&Order::none(), &record(Some("k"), "a")), None);
        assert_eq!(number(&Order::default(), &record(Some("k"), "a")), Some(PARTITION));
    }
}
