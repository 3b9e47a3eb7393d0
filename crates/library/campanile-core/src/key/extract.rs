//! The extractor trait and its combinators.

use bytes::{BufMut, BytesMut};

use crate::{BoxError, Fingerprint, FingerprintHasher, IdempotencyKey, IntoKey};

/// Extracts the idempotency key of a request. Implemented by closures `Fn(&R) -> impl IntoKey`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the idempotency key of a `{R}`",
    note = "an extractor reads the request that reaches the idempotency layer: a key from the body \
            needs a `DecodeLayer` outside of it, for the same body type"
)]
pub trait KeyExtractor<R> {
    /// Extracts the key, or `None` if the request has none.
    ///
    /// # Errors
    /// If the request contains an invalid key. The record acquires no lock and counts no attempt.
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError>;

    /// Computes the fingerprint of the payload. The default, `None`, disables the comparison.
    fn fingerprint(&self, _request: &R) -> Option<Fingerprint> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<R, F, K> KeyExtractor<R> for F
where
    F: Fn(&R) -> K,
    K: IntoKey,
{
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError> {
        self(request).into_key()
    }
}

/// An extractor with combinators. Created by the functions of [`key`](crate::key).
///
/// The combinators are inherent methods, because as trait methods they would leave the request type
/// ambiguous.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Key<E>(pub(super) E);

impl<E> Key<E> {
    /// Falls back to another extractor if the key is missing.
    pub fn or<F>(self, other: F) -> Key<Or<E, F>> {
        Key(Or(self.0, other))
    }

    /// Combines both keys into one, which is missing if either is. Each part is preceded by its
    /// length, so that no two pairs produce the same key.
    pub fn and<F>(self, other: F) -> Key<And<E, F>> {
        Key(And(self.0, other))
    }

    /// Adds a fingerprint of everything that `parts` feeds to the hasher: the same key with
    /// different parts is then a mismatch.
    ///
    /// Leave out fields that differ between legitimate deliveries, such as timestamps.
    pub fn fingerprint_by<R, F>(self, parts: F) -> Key<Fingerprinted<E, F>>
    where
        F: Fn(&R, &mut FingerprintHasher),
    {
        Key(Fingerprinted { key: self.0, parts })
    }
}

impl<R, E: KeyExtractor<R>> KeyExtractor<R> for Key<E> {
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError> {
        self.0.extract(request)
    }

    fn fingerprint(&self, request: &R) -> Option<Fingerprint> {
        self.0.fingerprint(request)
    }
}

/// The extractor returned by [`Key::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<E, F>(E, F);

impl<R, E: KeyExtractor<R>, F: KeyExtractor<R>> KeyExtractor<R> for Or<E, F> {
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError> {
        match self.0.extract(request)? {
            Some(key) => Ok(Some(key)),
            None => self.1.extract(request),
        }
    }

    /// Takes the fingerprint of the extractor that finds the key.
    fn fingerprint(&self, request: &R) -> Option<Fingerprint> {
        let (one, other) = (self.0.fingerprint(request), self.1.fingerprint(request));
        if one == other {
            return one;
        }
        match self.0.extract(request) {
            Ok(Some(_)) => one,
            _ => other,
        }
    }
}

/// The extractor returned by [`Key::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<E, F>(E, F);

impl<R, E: KeyExtractor<R>, F: KeyExtractor<R>> KeyExtractor<R> for And<E, F> {
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError> {
        let (Some(one), Some(other)) = (self.0.extract(request)?, self.1.extract(request)?) else {
            return Ok(None);
        };
        let mut both = BytesMut::with_capacity(8 + one.as_bytes().len() + other.as_bytes().len());
        for part in [one.as_bytes(), other.as_bytes()] {
            let length =
                u32::try_from(part.len()).map_err(|_| "a part of the key is 4 GiB or larger")?;
            both.put_u32(length);
            both.put_slice(part);
        }
        Ok(IdempotencyKey::new(both.freeze()))
    }

    /// Combines both fingerprints, if both extractors have one.
    fn fingerprint(&self, request: &R) -> Option<Fingerprint> {
        match (self.0.fingerprint(request), self.1.fingerprint(request)) {
            (Some(one), Some(other)) => {
                let mut hasher = FingerprintHasher::new();
                hasher.update(one.to_bits().to_be_bytes());
                hasher.update(other.to_bits().to_be_bytes());
                Some(hasher.finish())
            }
            (one, other) => one.or(other),
        }
    }
}

/// The extractor returned by [`Key::fingerprint_by`].
#[derive(Clone, Copy, Debug)]
pub struct Fingerprinted<E, F> {
    key: E,
    parts: F,
}

impl<R, E, F> KeyExtractor<R> for Fingerprinted<E, F>
where
    E: KeyExtractor<R>,
    F: Fn(&R, &mut FingerprintHasher),
{
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError> {
        self.key.extract(request)
    }

    fn fingerprint(&self, request: &R) -> Option<Fingerprint> {
        let mut hasher = FingerprintHasher::new();
        (self.parts)(request, &mut hasher);
        Some(hasher.finish())
    }
}
