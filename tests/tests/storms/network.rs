//! A network path to Redis that drops one direction while connections stay open.

use std::thread;

use campanile_test::history::{Cause, FaultKind, Peer};
use campanile_test::{Proxy, RedisServer};

use crate::scenario::{Scenario, with_timeout};
use crate::{LOCK_TTL, repeat};

#[test]
fn requests_lost_for_twice_lock_ttl_cost_no_record_and_no_attempt() {
    repeat(|seed| swallow_traffic("requests swallowed", seed, Proxy::swallow_requests));
}

#[test]
fn replies_lost_for_twice_lock_ttl_cost_no_record_and_no_attempt() {
    repeat(|seed| swallow_traffic("replies lost", seed, Proxy::swallow_replies));
}

fn swallow_traffic(name: &'static str, seed: u64, fault: impl Fn(&Proxy)) {
    let redis = RedisServer::start().unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let proxied_url = redis.url_through(proxy.addr());
    let mut scenario = Scenario::start(name, seed, || with_timeout(proxied_url.as_str()));
    let cut = FaultKind::NetworkCut { process: None, peer: Peer::Store };
    scenario.start_fault(0.25, Some(cut));
    fault(&proxy);
    thread::sleep(LOCK_TTL * 2);
    assert!(proxy.swallowed() > 0);
    proxy.heal().unwrap();
    scenario.end_fault();
    let verdict = scenario.finish([&redis], &[Cause::NetworkCut]);
    // The handlers in flight throughout the fault lost their locks in the meantime.
    assert!(!verdict.reruns.is_empty(), "the storm interrupted no handler");
}
