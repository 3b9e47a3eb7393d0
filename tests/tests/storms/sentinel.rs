//! A failover by sentinels. Nothing is waited for (`WAIT`), so what the replica had not received is
//! lost.

use std::time::Duration;

use campanile::RedisConfig;
use campanile_test::{RedisSentinel, eventually};

use crate::rounds;
use crate::storm::{Storm, timed};
use crate::verdict::Cause;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_failover_from_a_killed_primary_costs_no_record() {
    rounds(|seed| {
        let mut redis = RedisSentinel::start().unwrap();
        let mut storm = Storm::begin("failed over from a killed primary", seed, || config(&redis));
        storm.begin_fault(0.25, Cause::Loss);
        redis.kill(0).unwrap();
        let primary = redis.until_other_primary(0).unwrap();
        storm.end_fault();
        storm.end([redis.server(primary)]);
    });
}

#[test]
fn a_failover_by_command_costs_no_record() {
    rounds(|seed| {
        let mut redis = RedisSentinel::start().unwrap();
        let mut storm = Storm::begin("failed over by command", seed, || config(&redis));
        storm.begin_fault(0.25, Cause::Loss);
        let primary = redis.failover().unwrap();
        // Until it is told, the old one takes writes, too, and loses them then.
        let follows = || redis.server(0).cli(&["ROLE"]).ok().filter(|r| r.starts_with("slave"));
        eventually(SOON, follows).unwrap();
        storm.end_fault();
        storm.end([redis.server(primary)]);
    });
}

fn config(redis: &RedisSentinel) -> RedisConfig {
    timed(RedisConfig::sentinel(redis.name(), redis.urls()))
}
