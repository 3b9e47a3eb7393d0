//! The provided key extractors.

use std::borrow::Borrow;
use std::fmt;

use super::extract::Key;
use crate::{BoxError, IdempotencyKey, IntoKey, KeyExtractor, Record, Request};

/// Uses the value of the *last* header with this name, as Kafka's own clients do. The key is
/// missing if there is no such header, or if its value is null or empty.
pub fn header(name: impl Into<Box<str>>) -> Key<Header> {
    Key(Header(name.into()))
}

/// The extractor returned by [`header`].
#[derive(Clone, Debug)]
pub struct Header(Box<str>);

impl Header {
    fn find_key(&self, record: &Record) -> Option<IdempotencyKey> {
        record.headers().last(&self.0).cloned().and_then(IdempotencyKey::new)
    }
}

/// Uses a borrowed field of the body: `key::field(|p: &Payment| &p.id)`.
pub fn field<B, F, T>(field: F) -> Key<Field<F>>
where
    F: Fn(&B) -> &T,
    T: ToOwned<Owned: IntoKey> + ?Sized,
{
    Key(Field(field))
}

/// The extractor returned by [`field`].
#[derive(Clone, Copy)]
pub struct Field<F>(F);

impl<F> fmt::Debug for Field<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Field")
    }
}

impl<B, F, T> KeyExtractor<Request<B>> for Field<F>
where
    F: Fn(&B) -> &T,
    T: ToOwned<Owned: IntoKey + Borrow<T>> + ?Sized,
{
    fn extract(&self, request: &Request<B>) -> Result<Option<IdempotencyKey>, BoxError> {
        (self.0)(request.body()).to_owned().into_key()
    }
}

/// Uses the result of a closure over the body. The result must be owned; for a borrowed field, use
/// [`field()`].
pub fn body<B, F, K>(key: F) -> Key<Body<F>>
where
    F: Fn(&B) -> K,
    K: IntoKey,
{
    Key(Body(key))
}

/// The extractor returned by [`body`].
#[derive(Clone, Copy)]
pub struct Body<F>(F);

impl<F> fmt::Debug for Body<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Body")
    }
}

impl<B, F, K> KeyExtractor<Request<B>> for Body<F>
where
    F: Fn(&B) -> K,
    K: IntoKey,
{
    fn extract(&self, request: &Request<B>) -> Result<Option<IdempotencyKey>, BoxError> {
        (self.0)(request.body()).into_key()
    }
}

/// Uses the result of a closure over the whole request. Unlike a bare closure, the returned
/// extractor has combinators.
pub fn from_fn<R, F, K>(key: F) -> Key<F>
where
    F: Fn(&R) -> K,
    K: IntoKey,
{
    Key(key)
}

/// Uses the topic, partition and offset of the record's [origin](Record::origin), so that a copy in a retry
/// topic keeps its key, and the [id of the topic](Record::topic_id): `topic/partition@offset#id`. Without an id
/// the text ends at the offset.
///
/// These keys distinguish *records*, not events: if a producer sends an event twice, the second
/// record has another offset and is processed again.
///
/// Without an id, as in a consumer loop without the driver, they do not distinguish a topic from a later
/// topic with the same name, or from one of another cluster.
pub fn coordinates() -> Key<AtCoordinates> {
    Key(AtCoordinates)
}

/// The extractor returned by [`coordinates`].
#[derive(Clone, Copy, Debug)]
pub struct AtCoordinates;

/// Uses the key of the Kafka record. **Only the first record of each key counts: every later one is
/// answered as a duplicate**, even if it is a different event of the same aggregate.
///
/// Kafka's record key orders and compacts records: it is an account or a customer. It identifies an
/// event only in topics with one record per key.
pub fn record_key_only_first_record_counts() -> Key<RecordKey> {
    Key(RecordKey(()))
}

/// The extractor returned by [`record_key_only_first_record_counts`].
#[derive(Clone, Copy, Debug)]
pub struct RecordKey(());

impl RecordKey {
    fn find_key(record: &Record) -> Option<IdempotencyKey> {
        record.key().cloned().and_then(IdempotencyKey::new)
    }
}

macro_rules! record_extractors {
    ($($extractor:ty: $find:expr;)*) => {$(
        impl<B> KeyExtractor<Request<B>> for $extractor {
            fn extract(&self, request: &Request<B>) -> Result<Option<IdempotencyKey>, BoxError> {
                let find: fn(&Self, &Record) -> Option<IdempotencyKey> = $find;
                Ok(find(self, request.record()))
            }
        }

        impl KeyExtractor<Record> for $extractor {
            fn extract(&self, record: &Record) -> Result<Option<IdempotencyKey>, BoxError> {
                let find: fn(&Self, &Record) -> Option<IdempotencyKey> = $find;
                Ok(find(self, record))
            }
        }
    )*};
}

record_extractors! {
    Header: Header::find_key;
    AtCoordinates: |_, record| IdempotencyKey::new(match record.topic_id() {
        Some(id) => format!("{}#{id}", record.origin()),
        None => record.origin().to_string(),
    });
    RecordKey: |_, record| RecordKey::find_key(record);
}
