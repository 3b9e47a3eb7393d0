//! Processes with the scripts of release 0.1, and processes with the present ones, work on the same
//! entries.

use std::array;

use campanile_core::{Command, Retention};
use campanile_idempotency::Store;
use campanile_redis::RedisStore;
use campanile_test::RedisServer;
use fastrand::Rng;

use super::seed;
use super::shared_keys::{Handovers, KEYS, OPERATIONS, Release, SharedKey};
use super::v0_1::SCRIPTS;
use crate::support::{key, long_timeout, raw_connection, redis_key};

#[tokio::test]
async fn scripts_of_0_1_and_present_ones_match_step_on_the_same_entries() {
    let server = RedisServer::start().unwrap();
    let mut raw = raw_connection(&server);
    let config = || long_timeout(server.url());
    let v0_1 = RedisStore::connect_with_scripts(config(), &SCRIPTS).await.unwrap();
    let present = RedisStore::connect(config()).await.unwrap();
    let mut rng = Rng::with_seed(seed());
    let mut keys: [SharedKey; KEYS] = array::from_fn(|_| SharedKey::default());
    let mut handovers = Handovers::default();

    let mut number = 0;
    while number < OPERATIONS || !handovers.are_complete() {
        assert!(number < OPERATIONS * 20, "{handovers:?}");
        number += 1;
        let n = rng.usize(..KEYS);
        let key = key(format!("key {n}"));
        let (seconds, rest): (u64, u64) = redis::cmd("TIME").query(&mut raw).unwrap();
        let operation = keys[n].draw(&mut rng, seconds * 1_000_000 + rest);
        let (release, store) = match rng.bool() {
            true => (Release::V0_1, &v0_1),
            false => (Release::Present, &present),
        };
        let context = format!("operation {number}, by {release:?}: {operation:?}");
        let redis_key = redis_key(&key);
        let command =
            Command { key, operation: operation.clone(), retention: Retention::default() };
        let answer = store.apply(command).await.unwrap();
        let expected = keys[n].apply(release, &operation, answer.now, &mut handovers);
        assert_eq!(answer.reply, expected, "{context}");
        let stored: Option<Vec<u8>> = redis::cmd("GET").arg(redis_key).query(&mut raw).unwrap();
        let expected = keys[n].entry.as_ref().map(|entry| entry.to_bytes().to_vec());
        assert_eq!(stored, expected, "{context}");
    }
}
