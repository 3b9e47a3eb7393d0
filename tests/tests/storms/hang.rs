//! A Redis that hangs (SIGSTOP).

use std::thread;

use campanile_test::RedisServer;
use campanile_test::history::{Cause, FaultKind};

use crate::scenario::{Scenario, with_timeout};
use crate::{LOCK_TTL, repeat};

#[test]
fn redis_hang_of_half_lock_ttl_costs_no_record_and_no_attempt() {
    repeat(|seed| hang_redis("hung for half a lock's time to live", seed, 0.5));
}

#[test]
fn redis_hang_of_twice_lock_ttl_costs_no_record_and_no_attempt() {
    repeat(|seed| hang_redis("hung for twice a lock's time to live", seed, 2.0));
}

fn hang_redis(name: &'static str, seed: u64, ttl_multiple: f64) {
    let mut redis = RedisServer::start().unwrap();
    let mut scenario = Scenario::start(name, seed, || with_timeout(redis.url()));
    scenario.start_fault(0.25, Some(FaultKind::StoreUnavailable));
    redis.pause().unwrap();
    thread::sleep(LOCK_TTL.mul_f64(ttl_multiple));
    redis.resume().unwrap();
    scenario.end_fault();
    let verdict = scenario.finish([&redis], &[Cause::StoreUnavailable]);
    // The handlers in flight throughout the fault lost their locks in the meantime.
    if ttl_multiple > 1.0 {
        assert!(!verdict.reruns.is_empty(), "the storm interrupted no handler");
    }
}
