//! A failover by sentinels. Without `WAIT`, writes that the replica had not received are lost.

use std::time::Duration;

use campanile::RedisConfig;
use campanile_test::history::{Cause, FaultKind};
use campanile_test::{RedisSentinel, RedisServer, eventually};

use crate::repeat;
use crate::scenario::{Scenario, with_timeout};

/// Time limit for the stores to leave the old primary. Writes lost after that are a violation.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// So long that a busy primary does not look like a failed one.
const DOWN_AFTER: Duration = Duration::from_secs(5);

/// Writes lost by a killed primary were acknowledged within this time of the kill.
const LOSS_WINDOW: Duration = Duration::from_millis(250);

/// Why a key may run again after a failover.
const CAUSES: [Cause; 2] = [Cause::StoreUnavailable, Cause::StoreLostWrites];

#[test]
fn failover_from_killed_primary_costs_no_record() {
    repeat(|seed| {
        let mut redis = start(1);
        let mut scenario =
            Scenario::start("failed over from a killed primary", seed, || sentinel_config(&redis));
        scenario.start_fault(0.25, Some(FaultKind::StoreUnavailable));
        redis.kill(0).unwrap();
        let primary = redis.until_other_primary(0).unwrap();
        scenario.end_fault();
        scenario.writes_lost(None);
        scenario.finish([redis.server(primary)], &CAUSES);
    });
}

#[test]
fn failover_with_wait_for_replicas_costs_no_record() {
    repeat(|seed| {
        let mut redis = start(2);
        let config_with_wait = || sentinel_config(&redis).with_wait(1, Duration::from_millis(200));
        let mut scenario = Scenario::start("failed over, and waited for", seed, config_with_wait);
        scenario.start_fault(0.25, Some(FaultKind::StoreUnavailable));
        redis.kill(0).unwrap();
        let primary = redis.until_other_primary(0).unwrap();
        scenario.end_fault();
        // The sentinels may promote the other replica.
        scenario.writes_lost(Some(LOSS_WINDOW));
        scenario.finish([redis.server(primary)], &CAUSES);
    });
}

#[test]
fn failover_by_command_costs_no_record() {
    repeat(|seed| {
        let mut redis = start(1);
        let mut scenario =
            Scenario::start("failed over by command", seed, || sentinel_config(&redis));
        scenario.start_fault(0.25, Some(FaultKind::StoreUnavailable));
        let primary = redis.failover().unwrap();
        // The old primary accepts writes for another ten seconds or so, and then loses them.
        eventually(FAILOVER_TIMEOUT, || has_no_clients(redis.server(0)).then_some(()))
            .expect("the stores leave the old primary");
        scenario.end_fault();
        scenario.writes_lost(None);
        scenario.finish([redis.server(primary)], &CAUSES);
    });
}

/// Checks whether no clients are connected to the server except the sentinels and this query.
fn has_no_clients(server: &RedisServer) -> bool {
    let clients = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    let is_known =
        |client: &str| ["name=sentinel-", "cmd=client"].iter().any(|it| client.contains(it));
    clients.lines().all(is_known)
}

fn start(replicas: usize) -> RedisSentinel {
    RedisSentinel::builder().replicas(replicas).down_after(DOWN_AFTER).start().unwrap()
}

fn sentinel_config(redis: &RedisSentinel) -> RedisConfig {
    with_timeout(RedisConfig::sentinel(redis.name(), redis.urls()))
}
