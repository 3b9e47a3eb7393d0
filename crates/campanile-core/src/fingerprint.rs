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
    /// Returns the fingerprint with these bits, or `None` for zero, which means "disabled".
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

/// Collects the parts of a request that make up its fingerprint.
#[derive(Clone, Debug)]
pub struct FingerprintHasher(blake3::Hasher);

impl FingerprintHasher {
    pub(crate) fn new() -> Self {
        Self(blake3::Hasher::new())
    }

    /// Adds a part. Each part is preceded by its length, so that `ab` + `c` differs from `a` +
    /// `bc`.
    pub fn update(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.update(&(part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    pub(crate) fn finish(&self) -> Fingerprint {
        let hash = self.0.finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        // Zero means "disabled" in the stored form, so it becomes 1.
        Fingerprint(NonZeroU64::new(u64::from_be_bytes(first)).unwrap_or(NonZeroU64::MIN))
    }
}
