//! The entries as they stand in Redis, read without the product's client.

use std::collections::HashMap;

use campanile::store::{Entry, State, StoreKey};
use campanile::{IdempotencyKey, Namespace};
use campanile_test::RedisServer;

pub(crate) struct Entries(HashMap<[u8; 16], Entry>);

pub(crate) fn entries(redis: &RedisServer) -> Entries {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let keys: Vec<Vec<u8>> =
        redis::cmd("KEYS").arg("{payments:*}*").query(&mut connection).unwrap();
    let mut values = redis::cmd("MGET");
    for key in &keys {
        values.arg(key);
    }
    let values: Vec<Option<Vec<u8>>> = values.query(&mut connection).unwrap();
    let entry = |(key, value): (Vec<u8>, Option<Vec<u8>>)| {
        let digest = *key.last_chunk().unwrap();
        Some((digest, Entry::from_bytes(&value?).unwrap()))
    };
    Entries(keys.into_iter().zip(values).filter_map(entry).collect())
}

impl Entries {
    pub(crate) fn state(&self, key: &str) -> Option<State> {
        let namespace = Namespace::try_from("payments").unwrap();
        let key = StoreKey::new(namespace, IdempotencyKey::new(key.to_owned()).unwrap());
        self.0.get(key.digest()).map(Entry::state)
    }
}
