//! A failover by sentinels. Without `WAIT`, writes that the replica had not received are lost.

use std::time::Duration;

use campanile::RedisConfig;
use campanile_test::{RedisSentinel, RedisServer, eventually};

use crate::rounds;
use crate::storm::{Storm, timed};
use crate::verdict::Cause;

/// Time limit for the stores to leave the old primary. Writes lost after that are a violation.
const LEFT: Duration = Duration::from_secs(30);

/// Writes lost by a killed primary were acknowledged within this time of the kill.
const AT_ONCE: Duration = Duration::from_millis(250);

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
fn a_failover_that_replicas_are_waited_for_costs_no_record() {
    rounds(|seed| {
        // With a second replica, a busy new primary could be deposed in favor of it, so the
        // sentinels wait longer.
        let sentinels = RedisSentinel::builder().down_after(Duration::from_millis(1_500));
        let mut redis = sentinels.replicas(2).start().unwrap();
        let waiting = || config(&redis).with_wait(1, Duration::from_millis(200)).unwrap();
        let mut storm = Storm::begin("failed over, and waited for", seed, waiting);
        storm.begin_fault(0.25, Cause::Loss);
        redis.kill(0).unwrap();
        let primary = redis.until_other_primary(0).unwrap();
        storm.end_fault();
        let verdict = storm.end([redis.server(primary)]);
        // The sentinels may promote the other replica.
        let late = verdict.lost.iter().filter(|into| **into > AT_ONCE);
        assert_eq!(late.count(), 0, "{:?}", verdict.lost);
    });
}

#[test]
fn a_failover_by_command_costs_no_record() {
    rounds(|seed| {
        let mut redis = RedisSentinel::start().unwrap();
        let mut storm = Storm::begin("failed over by command", seed, || config(&redis));
        storm.begin_fault(0.25, Cause::Loss);
        let primary = redis.failover().unwrap();
        // The old primary accepts writes for another ten seconds or so, and then loses them.
        eventually(LEFT, || is_left(redis.server(0)).then_some(()))
            .expect("the stores leave the old primary");
        storm.end_fault();
        storm.end([redis.server(primary)]);
    });
}

/// Checks whether no clients are connected to the server except the sentinels and this query.
fn is_left(server: &RedisServer) -> bool {
    let clients = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    let is_known =
        |client: &str| ["name=sentinel-", "cmd=client"].iter().any(|it| client.contains(it));
    clients.lines().all(is_known)
}

fn config(redis: &RedisSentinel) -> RedisConfig {
    timed(RedisConfig::sentinel(redis.name(), redis.urls()))
}
