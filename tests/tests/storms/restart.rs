//! A Redis that is killed and restarted with everything it had acknowledged.

use campanile_test::RedisServer;
use campanile_test::history::{Cause, FaultKind};

use crate::repeat;
use crate::scenario::{Scenario, with_timeout};

#[test]
fn durable_redis_restart_costs_no_record_and_no_attempt() {
    repeat(|seed| {
        let builder = RedisServer::builder().append_only(true);
        let mut redis = builder.config("appendfsync", "always").start().unwrap();
        let url = redis.url();
        let mut scenario =
            Scenario::start("killed and restarted", seed, || with_timeout(url.as_str()));
        scenario.start_fault(0.25, Some(FaultKind::StoreUnavailable));
        redis.kill().unwrap();
        redis.restart().unwrap();
        scenario.end_fault();
        scenario.finish([&redis], &[Cause::StoreUnavailable]);
    });
}
