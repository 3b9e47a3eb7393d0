//! A key in the form in which stores use it.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::{IdempotencyKey, Namespace};

/// A namespace and a key, with the hash under which stores keep the entry.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreKey {
    digest: [u8; 16],
    namespace: Namespace,
    key: IdempotencyKey,
}

impl StoreKey {
    /// Creates a store key and computes its hash.
    pub fn new(namespace: Namespace, key: IdempotencyKey) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&blake3::hash(key.as_bytes()).as_bytes()[..16]);
        Self { digest, namespace, key }
    }

    /// Returns the namespace of the key.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the idempotency key.
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// Returns the first 16 bytes of BLAKE3 over the idempotency key, without the namespace.
    ///
    /// The digest has a fixed length, whatever the key, and contains nothing that needs escaping in
    /// a log or a command. Among 2^40 keys of one namespace, the probability that any two share a
    /// digest is below 2^-48.
    pub fn digest(&self) -> &[u8; 16] {
        &self.digest
    }
}

impl Hash for StoreKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The digest represents the key, and few namespaces share a key. Equality compares all
        // fields.
        state.write(&self.digest);
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreKey({}/", self.namespace)?;
        for byte in self.digest {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}
