//! The entries stored in Redis, read without the product's client.

use std::collections::HashMap;

use campanile::store::{Entry, StoreKey};
use campanile::{IdempotencyKey, key::Namespace};
use campanile_test::RedisServer;

/// The entries of one namespace.
pub(crate) struct Entries {
    namespace: Namespace,
    by_digest: HashMap<[u8; 16], Entry>,
}

/// Reads the entries from these servers, each of which holds some of them.
pub(crate) fn read_entries<'a>(
    servers: impl IntoIterator<Item = &'a RedisServer>,
    namespace: &str,
) -> Entries {
    let mut by_digest = HashMap::new();
    for server in servers {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let pattern = format!("{{{namespace}:*}}*");
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(pattern).query(&mut connection).unwrap();
        // One at a time: a cluster node refuses an `MGET` of keys in several slots.
        let mut values = redis::pipe();
        for key in &keys {
            values.get(key);
        }
        let values: Vec<Option<Vec<u8>>> = values.query(&mut connection).unwrap();
        for (key, value) in keys.iter().zip(values) {
            // A store that waits for replicas writes a marker, which is not an entry.
            let Some(value) = value.as_ref().filter(|value| !value.is_empty()) else { continue };
            by_digest.insert(*key.last_chunk().unwrap(), Entry::from_bytes(value).unwrap());
        }
    }
    Entries { namespace: Namespace::try_from(namespace).unwrap(), by_digest }
}

impl Entries {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        let key = IdempotencyKey::new(key.to_owned()).unwrap();
        self.by_digest.get(StoreKey::new(self.namespace.clone(), &key).digest())
    }
}
