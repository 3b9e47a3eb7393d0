//! Queries to sentinels, and which primary is found in which time.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::{sleep, timeout};

use super::*;
use crate::RedisConfig;
use crate::simulation::{Reply, ScriptedServers};
use crate::topology::Topology;

/// With sentinels at these hosts, 10 s to connect the store, and 1 s for a call.
fn topology_of<const N: usize>(sentinels: [&str; N]) -> Topology {
    let urls = sentinels.map(|host| format!("redis://{host}:1"));
    RedisConfig::sentinel("tower", urls).topology().unwrap()
}

fn topology() -> Topology {
    topology_of(["s"])
}

async fn connection(topology: &Topology) -> ConnectionHandle {
    topology.route(0).unwrap().connection().await.unwrap()
}

/// The reply of a sentinel that names this primary.
fn named(host: &str) -> Option<Reply> {
    Some(Reply::Array(vec![Reply::text(host), Reply::text("1")]))
}

fn role(role: &str) -> Option<Reply> {
    Some(Reply::Array(vec![Reply::text(role)]))
}

#[tokio::test(start_paused = true)]
async fn calls_query_the_sentinels_once_a_second() {
    let servers = ScriptedServers::start(|_, words| match words {
        ["SENTINEL", ..] => named("a"),
        ["ROLE"] => role("master"),
        _ => None,
    });
    let topology = topology();
    let first = connection(&topology).await;
    for queries in 2..5 {
        // This call starts a query.
        assert!(connection(&topology).await.is_same(&first));
        sleep(Duration::from_millis(999)).await;
        // This one is too early.
        assert!(connection(&topology).await.is_same(&first));
        sleep(Duration::from_millis(2)).await;
        assert_eq!(servers.received("SENTINEL").len(), queries);
    }
}

#[tokio::test(start_paused = true)]
async fn recheck_finds_new_primary_at_once_when_promoted() {
    static IS_NAMED: AtomicBool = AtomicBool::new(false);
    static IS_PROMOTED: AtomicBool = AtomicBool::new(false);
    let _servers = ScriptedServers::start(|address, words| match (address, words) {
        (_, ["SENTINEL", ..]) if IS_NAMED.load(Ordering::Relaxed) => named("b"),
        (_, ["SENTINEL", ..]) => named("a"),
        ("b:1", ["ROLE"]) if !IS_PROMOTED.load(Ordering::Relaxed) => role("slave"),
        (_, ["ROLE"]) => role("master"),
        _ => None,
    });
    let topology = topology();
    let first = connection(&topology).await;
    // Starts a query, the next of which is due in a second.
    connection(&topology).await;
    for (change, expected) in [(&IS_NAMED, "a:1"), (&IS_PROMOTED, "b:1")] {
        sleep(Duration::from_millis(200)).await;
        change.store(true, Ordering::Relaxed);
        topology.recheck_primary();
        sleep(Duration::from_millis(1)).await;
        let handle = connection(&topology).await;
        assert_eq!(handle.address(), expected);
        assert_eq!(handle.is_same(&first), expected == "a:1");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_servers_have_a_third_of_the_time_or_two_seconds() {
    let servers = ScriptedServers::start(|_, words| match words {
        ["SENTINEL", ..] => named("a"),
        ["ROLE"] => role("master"),
        _ => None,
    });
    for (connect_timeout, query, is_found_at_start, is_found_by_call) in [
        (3, 330, true, true),
        (3, 360, true, false),
        (3, 960, true, false),
        (3, 1_050, false, false),
        (60, 1_950, true, false),
        (60, 2_100, false, false),
    ] {
        // Connecting takes two replies, and the query a third one.
        for address in ["s:1", "a:1"] {
            servers.set_delay(address, Duration::from_millis(query / 3));
        }
        let config = RedisConfig::sentinel("tower", ["redis://s:1"]);
        let config = config.with_connect_timeout(Duration::from_secs(connect_timeout));
        let topology = config.topology().unwrap();
        assert_eq!(topology.primaries().await.is_ok(), is_found_at_start, "{query} ms");
        let connected = topology.route(0).unwrap().connection().await;
        assert_eq!(connected.is_ok(), is_found_by_call, "{query} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn hung_sentinel_or_server_delays_no_later_query() {
    static IS_OTHER_NAMED: AtomicBool = AtomicBool::new(false);
    for hung in ["s:1", "b:1"] {
        IS_OTHER_NAMED.store(false, Ordering::Relaxed);
        let servers = ScriptedServers::start(|_, words| match words {
            ["SENTINEL", ..] if IS_OTHER_NAMED.load(Ordering::Relaxed) => named("b"),
            ["SENTINEL", ..] => named("a"),
            ["ROLE"] => role("master"),
            _ => None,
        });
        let topology = topology();
        connection(&topology).await;
        IS_OTHER_NAMED.store(true, Ordering::Relaxed);
        servers.set_delay(hung, Duration::from_secs(60 * 60));
        // A query begins with a connection.
        let queries = || servers.received("CLIENT").iter().filter(|it| *it == "s:1").count();
        for _ in 0..3 {
            let before = queries();
            connection(&topology).await;
            sleep(Duration::from_millis(1_500)).await;
            assert!(queries() > before, "no query while {hung} hangs");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hung_sentinel_and_hung_server_leave_time_for_another() {
    let servers = ScriptedServers::start(|address, words| match (address, words) {
        ("s1:1", ["SENTINEL", ..]) => named("hung"),
        (_, ["SENTINEL", ..]) => named("a"),
        (_, ["ROLE"]) => role("master"),
        _ => None,
    });
    for address in ["s3:1", "hung:1"] {
        servers.set_delay(address, Duration::from_secs(60 * 60));
    }
    // The server that is named first is tried first.
    servers.set_delay("s2:1", Duration::from_millis(10));
    let topology = topology_of(["s1", "s2", "s3"]);
    let connected = timeout(Duration::from_secs(1), connection(&topology)).await;
    assert_eq!(connected.expect("an answer in time").address(), "a:1");
    assert!(servers.received("CLIENT").contains(&"hung:1".to_owned()));
}
