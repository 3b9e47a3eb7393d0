//! The entries as they stand in Redis, read without the product's client.

use std::collections::HashMap;

use campanile::store::{Entry, StoreKey};
use campanile::{IdempotencyKey, Namespace};
use campanile_test::RedisServer;

/// The entries of one namespace.
pub(crate) struct Entries {
    namespace: Namespace,
    by_digest: HashMap<[u8; 16], Entry>,
}

pub(crate) fn entries(redis: &RedisServer, namespace: &str) -> Entries {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let pattern = format!("{{{namespace}:*}}*");
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(pattern).query(&mut connection).unwrap();
    let mut values = redis::cmd("MGET");
    for key in &keys {
        values.arg(key);
    }
    let values: Vec<Option<Vec<u8>>> = values.query(&mut connection).unwrap();
    let entry = |(key, value): (Vec<u8>, Option<Vec<u8>>)| {
        let digest = *key.last_chunk().unwrap();
        Some((digest, Entry::from_bytes(&value?).unwrap()))
    };
    let by_digest = keys.into_iter().zip(values).filter_map(entry).collect();
    Entries { namespace: Namespace::try_from(namespace).unwrap(), by_digest }
}

impl Entries {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        let key = IdempotencyKey::new(key.to_owned()).unwrap();
        self.by_digest.get(StoreKey::new(self.namespace.clone(), key).digest())
    }
}
