//! A Redis that hangs (SIGSTOP).

use std::thread;

use campanile_test::RedisServer;

use crate::storm::{Storm, timed};
use crate::verdict::Cause;
use crate::{LOCK_TTL, rounds};

#[test]
fn a_redis_that_hangs_for_half_a_locks_time_to_live_costs_no_record_and_no_attempt() {
    rounds(|seed| hang("hung for half a lock's time to live", seed, 0.5));
}

#[test]
fn a_redis_that_hangs_for_twice_a_locks_time_to_live_costs_no_record_and_no_attempt() {
    rounds(|seed| hang("hung for twice a lock's time to live", seed, 2.0));
}

fn hang(scene: &'static str, seed: u64, times: f64) {
    let mut redis = RedisServer::start().unwrap();
    let mut storm = Storm::begin(scene, seed, || timed(redis.url()));
    storm.begin_fault(0.25, Cause::Expiry);
    redis.pause().unwrap();
    thread::sleep(LOCK_TTL.mul_f64(times));
    redis.resume().unwrap();
    storm.end_fault();
    let verdict = storm.end([&redis]);
    // The handlers in flight throughout the fault lost their locks in the meantime.
    if times > 1.0 {
        assert!(verdict.twice > 0, "the storm interrupted no handler");
    }
}
