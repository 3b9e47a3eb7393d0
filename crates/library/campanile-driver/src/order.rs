//! The order in which records are processed.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};

use campanile_core::{KeyExtractor, Record};

use crate::error::panic_text;

/// The processing order within a partition: which records are processed one after another. All
/// other records are processed concurrently. Passed to
/// `Consumer::with_order`.
///
/// ```
/// use campanile_core::key;
/// use campanile_driver::ProcessingOrder;
///
/// // in each partition, the records of an account are processed in order
/// let order = ProcessingOrder::by(key::header("account"));
/// # let _ = order;
/// ```
///
/// Records of different partitions are always processed concurrently, because Kafka itself defines
/// no order between them. So records that must be processed in order must be in one partition, as
/// records with the same record key are by default. Between processes, the only order is that of
/// the partitions, each of which belongs to one process at a time. Copies in retry
/// topics are processed by partition.
///
/// # Cost
/// [`by_key`](Self::by_key) and [`by`](Self::by) hash each record's key once, and keep a few
/// hundred bytes for each key that has records in memory. The
/// [budget](crate::DriverConfig::budget) bounds these by its number of records; nothing is kept
/// for other keys. [`unordered`](Self::unordered) keeps as much for each record,
/// [`by_partition`](Self::by_partition) for each partition.
///
/// # How far ahead records are processed
/// A partition's offset is committed up to its oldest unfinished record. With
/// [`by_key`](Self::by_key), [`by`](Self::by) and [`unordered`](Self::unordered), other records are processed
/// behind one that takes long or waits: as many as the [budget](crate::DriverConfig::budget) has
/// records, counted from that one. Then its partition waits for it. At most that many records are
/// read again after a crash, and answered as duplicates.
#[must_use]
pub struct ProcessingOrder(Kind);

enum Kind {
    Partition,
    Key(RandomState),
    By(Box<dyn Fn(&Record) -> OrderKey + Send + Sync>),
    None,
}

/// Records of a partition with the same order key are processed in order. A key that comes from a client's
/// data is a hash with random state, so that clients cannot make keys collide.
pub(crate) type OrderKey = u64;

/// The order key of records that no other key distinguishes.
pub(crate) const SHARED_KEY: OrderKey = 0;

/// How a record's order key is found.
pub(crate) enum OrderKeySource {
    /// The order key is known. `None`: the record is processed concurrently with all others.
    Key(Option<OrderKey>),
    /// [`ProcessingOrder::extract`] finds the order key. It runs user code.
    Extract,
}

impl ProcessingOrder {
    /// Processes all records of a partition in order: each starts when the previous one is
    /// finished. The default, because it is what Kafka promises.
    ///
    /// A record that takes long, or waits for its next attempt or for a lock, holds up its
    /// partition.
    pub fn by_partition() -> Self {
        Self(Kind::Partition)
    }

    /// Processes records with the same record key in order. Records without a key are in order
    /// among themselves.
    ///
    /// Keys with the same 64-bit hash, by coincidence, are in order as well.
    pub fn by_key() -> Self {
        Self(Kind::Key(RandomState::new()))
    }

    /// Processes records with the same extracted key in order: a header, or the result of a
    /// closure. Records for which the extractor finds no key, returns an error or panics are in
    /// order among themselves.
    ///
    /// With the extractor of the idempotency layer, a duplicate is processed after its original is
    /// finished, and never waits for its lock in this process.
    pub fn by(key: impl KeyExtractor<Record> + Send + Sync + 'static) -> Self {
        let state = RandomState::new();
        Self(Kind::By(Box::new(move |record| {
            match catch_unwind(AssertUnwindSafe(|| key.extract(record))) {
                Ok(Ok(Some(key))) => state.hash_one(key.as_bytes()),
                Ok(Ok(None) | Err(_)) => SHARED_KEY,
                Err(panic) => {
                    let (record, error) = (record.coordinates(), panic_text(panic));
                    tracing::error!(%record, error, "order extractor panicked; assuming no key");
                    SHARED_KEY
                }
            }
        })))
    }

    /// Processes all records concurrently.
    pub fn unordered() -> Self {
        Self(Kind::None)
    }

    /// Computes a record's order key, unless the extractor has to find it.
    pub(crate) fn key_source(&self, record: &Record) -> OrderKeySource {
        match &self.0 {
            Kind::Partition => OrderKeySource::Key(Some(SHARED_KEY)),
            Kind::Key(state) => {
                let key = record.key().map_or(SHARED_KEY, |key| state.hash_one(&**key));
                OrderKeySource::Key(Some(key))
            }
            Kind::By(_) => OrderKeySource::Extract,
            Kind::None => OrderKeySource::Key(None),
        }
    }

    /// Runs the extractor, if there is one. Never panics.
    pub(crate) fn extract(&self, record: &Record) -> OrderKey {
        match &self.0 {
            Kind::By(extract) => extract(record),
            Kind::Partition | Kind::Key(_) | Kind::None => SHARED_KEY,
        }
    }
}

/// The default order is [`by_partition`](Self::by_partition).
impl Default for ProcessingOrder {
    fn default() -> Self {
        Self::by_partition()
    }
}

impl fmt::Debug for ProcessingOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Partition => "ProcessingOrder::by_partition",
            Kind::Key(_) => "ProcessingOrder::by_key",
            Kind::By(_) => "ProcessingOrder::by",
            Kind::None => "ProcessingOrder::unordered",
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

    /// Finds the record's order key, with the extractor if necessary.
    fn order_key(order: &ProcessingOrder, record: &Record) -> Option<OrderKey> {
        match order.key_source(record) {
            OrderKeySource::Key(key) => key,
            OrderKeySource::Extract => Some(order.extract(record)),
        }
    }

    #[test]
    fn by_key_orders_equal_keys_and_missing_keys() {
        let order = ProcessingOrder::by_key();
        let key = |key| order_key(&order, &record(key, "a"));
        assert_eq!(key(Some("k")), key(Some("k")));
        assert_ne!(key(Some("k")), key(Some("l")));
        assert_eq!(key(None), Some(SHARED_KEY));
    }

    #[test]
    fn by_extractor_orders_equal_extracted_keys() {
        let order = ProcessingOrder::by(key::header("account"));
        let key_of = |key, account| order_key(&order, &record(key, account));
        assert_eq!(key_of(Some("k"), "a"), key_of(Some("l"), "a"));
        assert_ne!(key_of(None, "a"), key_of(None, "b"));
        let refuses = ProcessingOrder::by(|_: &Record| Err::<String, _>("no"));
        assert_eq!(order_key(&refuses, &record(None, "a")), Some(SHARED_KEY));
        let panics =
            ProcessingOrder::by(|_: &Record| -> Option<String> { panic!("injected panic") });
        assert_eq!(order_key(&panics, &record(None, "a")), Some(SHARED_KEY));
    }

    #[test]
    fn unordered_orders_nothing_and_by_partition_orders_all() {
        assert_eq!(order_key(&ProcessingOrder::unordered(), &record(Some("k"), "a")), None);
        assert_eq!(
            order_key(&ProcessingOrder::default(), &record(Some("k"), "a")),
            Some(SHARED_KEY)
        );
    }
}
