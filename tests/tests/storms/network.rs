//! A network path to Redis that drops one direction while connections stay open.

use std::thread;

use campanile_test::{Proxy, RedisServer};

use crate::storm::{Storm, timed};
use crate::verdict::Cause;
use crate::{LOCK_TTL, rounds};

#[test]
fn a_black_hole_for_twice_a_locks_time_to_live_costs_no_record_and_no_attempt() {
    rounds(|seed| swallow("requests swallowed", seed, Proxy::swallow_requests));
}

#[test]
fn replies_lost_for_twice_a_locks_time_to_live_cost_no_record_and_no_attempt() {
    rounds(|seed| swallow("replies lost", seed, Proxy::swallow_replies));
}

fn swallow(scene: &'static str, seed: u64, fault: impl Fn(&Proxy)) {
    let redis = RedisServer::start().unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let through = redis.url_through(proxy.addr());
    let mut storm = Storm::begin(scene, seed, || timed(through.as_str()));
    storm.begin_fault(0.25, Cause::Expiry);
    fault(&proxy);
    thread::sleep(LOCK_TTL * 2);
    assert!(proxy.swallowed() > 0);
    proxy.heal().unwrap();
    storm.end_fault();
    let verdict = storm.end([&redis]);
    // The handlers in flight throughout the fault lost their locks in the meantime.
    assert!(verdict.twice > 0, "the storm interrupted no handler");
}
