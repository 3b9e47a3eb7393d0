//! Where keys are found.

use std::borrow::Borrow;
use std::fmt;

use super::extract::Key;
use crate::{BoxError, IdempotencyKey, IntoKey, KeyExtractor, Record, Request};

/// The value of the *last* header of this name, as Kafka's own clients read it. Missing if there is
/// none, or it is null or empty.
pub fn header(name: impl Into<Box<str>>) -> Key<Header> {
    Key(Header(name.into()))
}

/// See [`header`].
#[derive(Clone, Debug)]
pub struct Header(Box<str>);

impl Header {
    fn of(&self, record: &Record) -> Option<IdempotencyKey> {
        record.headers().last(&self.0).flatten().cloned().and_then(IdempotencyKey::new)
    }
}

/// A field of the body, borrowed: `key::field(|p: &Payment| &p.id)`.
pub fn field<B, F, T>(field: F) -> Key<Field<F>>
where
    F: Fn(&B) -> &T,
    T: ToOwned<Owned: IntoKey> + ?Sized,
{
    Key(Field(field))
}

/// See [`field`].
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

/// What a closure makes of the body; it must be owned. For a borrowed field there is [`field()`].
pub fn body<B, F, K>(key: F) -> Key<Body<F>>
where
    F: Fn(&B) -> K,
    K: IntoKey,
{
    Key(Body(key))
}

/// See [`body`].
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

/// What a closure makes of the whole request, with combinators.
pub fn from_fn<R, F, K>(key: F) -> Key<F>
where
    F: Fn(&R) -> K,
    K: IntoKey,
{
    Key(key)
}

/// Topic, partition and offset: `topic/partition@offset`, of the record's
/// [origin](Record::origin), so that a copy in a retry topic keeps its key.
///
/// It tells one *record* from another, not one event from another: a producer's retry of its own
/// making gets another offset and is processed again. And it does not tell a topic from its
/// successor of the same name: when a topic is deleted and created anew, its first records look
/// like the old ones until their entries' retention is over. Use another namespace then.
pub fn coordinates() -> Key<AtCoordinates> {
    Key(AtCoordinates)
}

/// See [`coordinates`].
#[derive(Clone, Copy, Debug)]
pub struct AtCoordinates;

/// The Kafka record's key. **Only the first record of each key counts: every later one is answered
/// as a duplicate**, also when it is another event of the same aggregate.
///
/// Kafka's record key is what orders and compacts records: an account, a customer. It identifies an
/// event only in topics that have one record for each key.
pub fn record_key_only_first_record_counts() -> Key<RecordKey> {
    Key(RecordKey(()))
}

/// See [`record_key_only_first_record_counts`].
#[derive(Clone, Copy, Debug)]
pub struct RecordKey(());

impl RecordKey {
    fn of(record: &Record) -> Option<IdempotencyKey> {
        record.key().cloned().and_then(IdempotencyKey::new)
    }
}

macro_rules! of_record {
    ($($extractor:ty: $of:expr;)*) => {$(
        impl<B> KeyExtractor<Request<B>> for $extractor {
            fn extract(&self, request: &Request<B>) -> Result<Option<IdempotencyKey>, BoxError> {
                let of: fn(&Self, &Record) -> Option<IdempotencyKey> = $of;
                Ok(of(self, request.record()))
            }
        }

        impl KeyExtractor<Record> for $extractor {
            fn extract(&self, record: &Record) -> Result<Option<IdempotencyKey>, BoxError> {
                let of: fn(&Self, &Record) -> Option<IdempotencyKey> = $of;
                Ok(of(self, record))
            }
        }
    )*};
}

of_record! {
    Header: Header::of;
    AtCoordinates: |_, record| IdempotencyKey::new(record.origin().to_string());
    RecordKey: |_, record| RecordKey::of(record);
}
