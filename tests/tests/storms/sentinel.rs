//! A failover by sentinels. Where nothing is waited for (`WAIT`), what the replica had not received is
//! lost.

use std::time::Duration;

use campanile::RedisConfig;
use campanile_test::{RedisSentinel, RedisServer, eventually};

use crate::rounds;
use crate::storm::{Storm, timed};
use crate::verdict::Cause;

/// Until the stores have left the old primary; what is lost after that is a violation.
const LEFT: Duration = Duration::from_secs(30);

/// What is lost of a primary that was killed, it had acknowledged at that moment.
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
        // There is a second replica, for which the first is not to be deposed because it is busy.
        let sentinels = RedisSentinel::builder().down_after(Duration::from_millis(1_500));
        let mut redis = sentinels.replicas(2).start().unwrap();
        let waiting = || config(&redis).with_wait(1, Duration::from_millis(200)).unwrap();
        let mut storm = Storm::begin("failed over, and waited for", seed, waiting);
        storm.begin_fault(0.25, Cause::Loss);
        redis.kill(0).unwrap();
        let primary = redis.until_other_primary(0).unwrap();
        storm.end_fault();
        let verdict = storm.end([redis.server(primary)]);
        // The other replica may be the one that is promoted.
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
        // The old one takes writes for some ten seconds more, and loses them then.
        eventually(LEFT, || is_left(redis.server(0)).then_some(())).expect("the stores leave it");
        storm.end_fault();
        storm.end([redis.server(primary)]);
    });
}

/// Whether nobody is connected to the server but the sentinels, and who asks.
fn is_left(server: &RedisServer) -> bool {
    let clients = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    let is_known =
        |client: &str| ["name=sentinel-", "cmd=client"].iter().any(|it| client.contains(it));
    clients.lines().all(is_known)
}

fn config(redis: &RedisSentinel) -> RedisConfig {
    timed(RedisConfig::sentinel(redis.name(), redis.urls()))
}
