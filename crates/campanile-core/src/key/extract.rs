//! The trait, and the combinators over it.

use bytes::{BufMut, BytesMut};

use crate::{BoxError, Fingerprint, FingerprintHasher, IdempotencyKey, IntoKey};

/// Finds the idempotency key of a request. Closures `Fn(&R) -> impl IntoKey` are extractors.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the idempotency key of a `{R}`",
    note = "an extractor reads the request that reaches the idempotency layer: a key from the body \
            needs a `DecodeLayer` outside of it, for the same body type"
)]
pub trait KeyExtractor<R> {
    /// The key; `None` if the request has none.
    ///
    /// # Errors
    /// When there is something that is no key. The record takes no lock and counts no attempt.
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError>;

    /// The fingerprint of the payload; `None`, the default, compares nothing.
    fn fingerprint(&self, request: &R) -> Option<Fingerprint> {
        let _ = request;
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

/// An extractor with combinators. Made by the functions of [`key`](crate::key).
///
/// They are inherent methods, because as trait methods they would leave the request's type open.
#[derive(Clone, Copy, Debug)]
pub struct Key<E>(pub(super) E);

impl<E> Key<E> {
    /// This one's key or, if it is missing, the other's.
    pub fn or<F>(self, other: F) -> Key<Or<E, F>> {
        Key(Or(self.0, other))
    }

    /// Both keys as one; missing if either is. Each part is preceded by its length, so that no two
    /// pairs make one key.
    pub fn and<F>(self, other: F) -> Key<And<E, F>> {
        Key(And(self.0, other))
    }

    /// Also takes a fingerprint of what `parts` feeds to the hasher: the same key with other parts
    /// is then a mismatch. Leave out what differs between honest deliveries (timestamps).
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

/// See [`Key::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<E, F>(E, F);

impl<R, E: KeyExtractor<R>, F: KeyExtractor<R>> KeyExtractor<R> for Or<E, F> {
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError> {
        match self.0.extract(request)? {
            Some(key) => Ok(Some(key)),
            None => self.1.extract(request),
        }
    }

    /// That of the one whose key it is.
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

/// See [`Key::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<E, F>(E, F);

impl<R, E: KeyExtractor<R>, F: KeyExtractor<R>> KeyExtractor<R> for And<E, F> {
    fn extract(&self, request: &R) -> Result<Option<IdempotencyKey>, BoxError> {
        let (Some(one), Some(other)) = (self.0.extract(request)?, self.1.extract(request)?) else {
            return Ok(None);
        };
        let mut both = BytesMut::with_capacity(8 + one.as_bytes().len() + other.as_bytes().len());
        for part in [one.as_bytes(), other.as_bytes()] {
            let length = u32::try_from(part.len()).map_err(|_| "a key's part of 4 GiB or more")?;
            both.put_u32(length);
            both.put_slice(part);
        }
        Ok(IdempotencyKey::new(both.freeze()))
    }

    /// Of both, if both have one.
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

/// See [`Key::fingerprint_by`].
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
