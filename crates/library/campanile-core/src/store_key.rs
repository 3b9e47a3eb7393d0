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

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn digest_is_the_same_in_every_version() {
        let key = IdempotencyKey::new("p-1").unwrap();
        let namespace = Namespace::try_from("payments").unwrap();
        let store_key = StoreKey::new(namespace.clone(), &key);
        assert_eq!(store_key.digest_hex(), "007e5b36c415879c90ca70253f9101a0");
        assert_eq!(store_key.namespace(), &namespace);
        assert_eq!(StoreKey::from_digest(namespace, *store_key.digest()), store_key);
        assert_eq!(format!("{store_key:?}"), "StoreKey(payments/007e5b36c415879c90ca70253f9101a0)");
    }

    #[test]
    fn keys_differ_in_their_hashes() {
        let hasher = RandomState::new();
        let hash = |digest| {
            hasher.hash_one(StoreKey::from_digest(Namespace::try_from("n").unwrap(), [digest; 16]))
        };
        assert_ne!(hash(1), hash(2));
    }
}
