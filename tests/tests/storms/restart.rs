//! A Redis, or Valkey, that is killed and restarted with everything it had acknowledged.

use campanile_test::history::{Cause, FaultKind};
use campanile_test::{RedisServer, RedisServerBuilder};

use crate::repeat;
use crate::scenario::{Scenario, with_timeout};

#[test]
fn durable_redis_restart_costs_no_record_and_no_attempt() {
    repeat(|seed| restart("killed and restarted", seed, RedisServer::builder()));
}

#[test]
fn durable_valkey_restart_costs_no_record_and_no_attempt() {
    repeat(|seed| restart("Valkey, killed and restarted", seed, RedisServer::builder().valkey()));
}

fn restart(name: &'static str, seed: u64, server: RedisServerBuilder) {
    let mut redis = server.append_only(true).config("appendfsync", "always").start().unwrap();
    let url = redis.url();
    let mut scenario = Scenario::start(name, seed, || with_timeout(url.as_str()));
    scenario.start_fault(0.25, Some(FaultKind::StoreUnavailable));
    redis.kill().unwrap();
    redis.restart().unwrap();
    scenario.end_fault();
    scenario.finish([&redis], &[Cause::StoreUnavailable]);
}
