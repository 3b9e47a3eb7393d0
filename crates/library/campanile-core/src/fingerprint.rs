//! The fingerprint of a payload, which identifies the event for which a key was first used.

use std::fmt;
use std::num::NonZeroU64;

/// 64 bits of BLAKE3 over the part of a request that the user chose.
///
/// The entry keeps the fingerprint in every state. The same key with a different payload is
/// therefore an error, and is never answered with the reply to the other payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(NonZeroU64);

impl Fingerprint {
    /// Creates the fingerprint with these bits, or `None` for zero, which means "disabled".
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// Computes the fingerprint of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = FingerprintHasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns the bits, which are never zero.
    pub const fn to_bits(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:016x})", self.0)
    }
}

/// Collects the parts of a request that make up its fingerprint. The layer creates one for each
/// request; create one yourself to test a closure for
/// [`fingerprint_by`](crate::key::Key::fingerprint_by).
///
/// ```
/// use campanile_core::{FingerprintHasher, Record, Request};
///
/// struct Payment { cents: u64, sent_at: u64 }
///
/// fn parts(request: &Request<Payment>, hasher: &mut FingerprintHasher) {
///     hasher.update(request.body().cents.to_be_bytes());
/// }
///
/// let fingerprint = |payment| {
///     let mut hasher = FingerprintHasher::new();
///     parts(&Request::new(Record::builder("payments", 0, 0).build(), payment), &mut hasher);
///     hasher.finish()
/// };
/// let first = fingerprint(Payment { cents: 100, sent_at: 1 });
/// assert_eq!(first, fingerprint(Payment { cents: 100, sent_at: 2 }));
/// assert_ne!(first, fingerprint(Payment { cents: 200, sent_at: 1 }));
/// ```
#[derive(Clone, Debug, Default)]
pub struct FingerprintHasher(blake3::Hasher);

impl FingerprintHasher {
    /// Creates a hasher without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part. Each part is preceded by its length, so that `ab` + `c` differs from `a` +
    /// `bc`.
    pub fn update(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.update(&(part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    /// Computes the fingerprint of the parts added so far.
    pub fn finish(&self) -> Fingerprint {
        let hash = self.0.finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        // Zero means "disabled" in the stored form, so it becomes 1.
        Fingerprint(NonZeroU64::new(u64::from_be_bytes(first)).unwrap_or(NonZeroU64::MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_is_the_same_in_every_version() {
        let fingerprint = Fingerprint::of(b"cents: 100");
        assert_eq!(format!("{fingerprint:?}"), "Fingerprint(3b487a00513e8690)");
        assert_eq!(Fingerprint::from_bits(fingerprint.to_bits()), Some(fingerprint));
        assert_eq!(Fingerprint::from_bits(0), None);
    }
}
