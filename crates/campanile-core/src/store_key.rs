//! A key as a store sees it.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::{IdempotencyKey, Namespace};

/// Namespace and key, with the hash under which stores keep the entry.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreKey {
    digest: [u8; 16],
    namespace: Namespace,
    key: IdempotencyKey,
}

impl StoreKey {
    /// The key within the namespace; computes the hash.
    pub fn new(namespace: Namespace, key: IdempotencyKey) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&blake3::hash(key.as_bytes()).as_bytes()[..16]);
        Self { digest, namespace, key }
    }

    /// Whose key it is.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The user's key.
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The first 16 bytes of BLAKE3 over the user's key (not over the namespace): of a fixed length,
    /// whatever the key, and nothing in it that a log or a command could stumble over.
    ///
    /// Among 2^40 keys of one namespace, the chance that any two share it is below 2^-48.
    pub fn digest(&self) -> &[u8; 16] {
        &self.digest
    }
}

impl Hash for StoreKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // It stands for the key, and few namespaces have a key in common; equality still compares all.
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
