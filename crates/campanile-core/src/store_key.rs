//! The key of an entry.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::{IdempotencyKey, Namespace};

/// The key of an entry: a namespace and the hash of an idempotency key.
///
/// The idempotency key itself is in the entry's [details](crate::Details), if it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreKey {
    digest: [u8; 16],
    namespace: Namespace,
}

impl StoreKey {
    /// Computes the store key of an idempotency key.
    pub fn new(namespace: Namespace, key: &IdempotencyKey) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&blake3::hash(key.as_bytes()).as_bytes()[..16]);
        Self { digest, namespace }
    }

    /// Creates the store key of an entry that was found by its [digest](Self::digest).
    pub const fn from_digest(namespace: Namespace, digest: [u8; 16]) -> Self {
        Self { digest, namespace }
    }

    /// Returns the namespace of the key.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the first 16 bytes of BLAKE3 over the idempotency key, without the namespace.
    ///
    /// The digest has a fixed length, whatever the key, and contains nothing that needs escaping in
    /// a log or a command. Among 2^40 keys of one namespace, the probability that any two share a
    /// digest is below 2^-48.
    pub fn digest(&self) -> &[u8; 16] {
        &self.digest
    }

    /// Returns the [digest](Self::digest) in 32 hexadecimal digits, as in log events.
    pub fn digest_hex(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.digest))
    }
}

impl Hash for StoreKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Few namespaces share a key.
        state.write(&self.digest);
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreKey({}/{})", self.namespace, self.digest_hex())
    }
}
