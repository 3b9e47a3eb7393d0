//! A Redis that is killed and restarted with everything it had acknowledged.

use campanile_test::RedisServer;

use crate::rounds;
use crate::storm::{Storm, timed};
use crate::verdict::Cause;

#[test]
fn a_redis_that_is_killed_and_keeps_what_it_acknowledged_costs_no_record_and_no_attempt() {
    rounds(|seed| {
        let builder = RedisServer::builder().append_only(true);
        let mut redis = builder.config("appendfsync", "always").start().unwrap();
        let url = redis.url();
        let mut storm = Storm::begin("killed and restarted", seed, || timed(url.as_str()));
        storm.begin_fault(0.25, Cause::Expiry);
        redis.kill().unwrap();
        redis.restart().unwrap();
        storm.end_fault();
        storm.end([&redis]);
    });
}
