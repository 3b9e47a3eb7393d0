//! Queries to a sentinel while the primary answers.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::sleep;

use super::*;
use crate::RedisConfig;
use crate::simulation::{Reply, ScriptedServers};
use crate::topology::Topology;

fn topology() -> Topology {
    RedisConfig::sentinel("tower", ["redis://s:1"]).topology().unwrap()
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
