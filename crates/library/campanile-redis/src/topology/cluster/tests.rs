//! When the slots are fetched, and from which nodes.

use std::error::Error;
use std::sync::atomic::AtomicUsize;

use redis::IntoConnectionInfo;
use tokio::time::sleep;

use super::*;
use crate::connector::Secrets;
use crate::simulation::{Reply, ScriptedServers};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The cluster to which the node at this URL belongs.
fn cluster(url: &str) -> Cluster {
    let server = Endpoint::new(url.into_connection_info().unwrap(), Secrets::default());
    let seeds = Address::from_connection_addr(server.info().addr()).into_iter().collect();
    let timeout = Duration::from_secs(1);
    Cluster::new(Connector::new(server, timeout), seeds, timeout)
}

fn address(host: &str) -> Address {
    Address { host: host.into(), port: 1 }
}

/// The reply of a node to `CLUSTER SLOTS`. Each of these masters has one slot.
fn slots(masters: &[&str]) -> Option<Reply> {
    let range = |(slot, host): (i64, &&str)| {
        let master = Reply::Array(vec![Reply::text(*host), Reply::Int(1)]);
        Reply::Array(vec![Reply::Int(slot), Reply::Int(slot), master])
    };
    Some(Reply::Array((0..).zip(masters).map(range).collect()))
}

/// Why the node has no connection.
async fn reason(node: &Arc<Node>) -> String {
    let error = node.connection().await.err().expect("an unavailable node");
    error.source().unwrap().to_string()
}

#[tokio::test(start_paused = true)]
async fn slots_are_fetched_at_most_every_100_ms() {
    let servers = ScriptedServers::start(|_, words| match words {
        ["CLUSTER", "SLOTS"] => slots(&["a"]),
        _ => None,
    });
    let cluster = cluster("redis://a:1");
    let master = || cluster.master_of(0).unwrap().address.clone();
    for queries in 1..4 {
        cluster.record_move(0, address("b"));
        cluster.record_move(0, address("b"));
        assert_eq!(master(), address("b"));
        sleep(PROBE_INTERVAL - MILLISECOND).await;
        assert_eq!(master(), address("a"));
        cluster.spawn_refresh();
        sleep(2 * MILLISECOND).await;
        assert_eq!(servers.received("CLUSTER").len(), queries);
    }
}

#[tokio::test(start_paused = true)]
async fn slots_are_fetched_from_available_masters() {
    let servers = ScriptedServers::start(|_, words| match words {
        ["CLUSTER", "SLOTS"] => slots(&["a", "b"]),
        _ => None,
    });
    let cluster = cluster("redis://seed:1");
    cluster.fetch_masters().await.unwrap();
    let (masters, _) = cluster.masters();
    masters[1].mark_unavailable(&"no answer");
    // The probe fetches the slots, and then finds that the node answers.
    sleep(MILLISECOND).await;
    assert_eq!(servers.received("CLUSTER"), ["seed:1", "a:1"]);
    masters[1].connection().await.unwrap();
    cluster.fetch_masters().await.unwrap();
    assert_eq!(servers.received("CLUSTER")[2..], ["a:1", "b:1"]);
}

#[tokio::test(start_paused = true)]
async fn replica_of_dead_seed_is_found_by_unused_masters() {
    static IS_DEAD: AtomicBool = AtomicBool::new(false);
    let _servers = ScriptedServers::start(|address, words| match (address, words) {
        ("a:1", ["AUTH", ..]) if IS_DEAD.load(Ordering::Relaxed) => None,
        (_, ["AUTH", ..]) => Some(Reply::Ok),
        ("a:1", ["CLUSTER", "SLOTS"]) => slots(&["a", "b"]),
        (_, ["CLUSTER", "SLOTS"]) => slots(&["replica", "b"]),
        _ => None,
    });
    let cluster = cluster("redis://:password@a:1");
    cluster.fetch_masters().await.unwrap();
    let copy = cluster.with_new_connections();
    IS_DEAD.store(true, Ordering::Relaxed);
    let seed = copy.master_of(0).unwrap();
    assert_eq!(reason(&seed).await, "Redis at a:1 (without TLS) cannot be reached");
    sleep(MILLISECOND).await;
    assert_eq!(copy.master_of(0).unwrap().address, address("replica"));
}

#[tokio::test(start_paused = true)]
async fn changed_slots_need_a_new_check_of_buckets() {
    let queries = AtomicUsize::new(0);
    let _servers = ScriptedServers::start(move |_, words| match words {
        ["CLUSTER", "SLOTS"] if queries.fetch_add(1, Ordering::Relaxed) < 2 => slots(&["a"]),
        ["CLUSTER", "SLOTS"] => slots(&["a", "b"]),
        _ => None,
    });
    let (cluster, namespace) = (cluster("redis://a:1"), "payments".try_into().unwrap());
    for is_changed in [true, false, true] {
        cluster.set_buckets_checked(&namespace);
        assert!(cluster.has_checked_buckets(&namespace));
        cluster.fetch_masters().await.unwrap();
        assert_eq!(cluster.has_checked_buckets(&namespace), !is_changed);
    }
}

#[tokio::test(start_paused = true)]
async fn unavailable_master_is_probed_until_it_answers() {
    let attempts = AtomicUsize::new(0);
    let _servers = ScriptedServers::start(move |address, words| match (address, words) {
        (_, ["CLUSTER", "SLOTS"]) => slots(&["b"]),
        ("b:1", ["AUTH", ..]) if attempts.fetch_add(1, Ordering::Relaxed) < 3 => None,
        (_, ["AUTH", ..]) => Some(Reply::Ok),
        _ => None,
    });
    let cluster = cluster("redis://:password@a:1");
    cluster.fetch_masters().await.unwrap();
    let master = cluster.master_of(0).unwrap();
    assert_eq!(reason(&master).await, "Redis at b:1 (without TLS) cannot be reached");
    // The probe fails at once, fails again after an interval, and succeeds after another.
    sleep(PROBE_INTERVAL + MILLISECOND).await;
    assert!(reason(&master).await.contains("is unavailable"));
    sleep(PROBE_INTERVAL).await;
    master.connection().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unavailable_node_without_slots_is_not_probed() {
    let _servers = ScriptedServers::start(|address, words| match (address, words) {
        (_, ["CLUSTER", "SLOTS"]) => slots(&["a"]),
        ("a:1", ["AUTH", ..]) => Some(Reply::Ok),
        _ => None,
    });
    let cluster = cluster("redis://:password@a:1");
    let node = cluster.node_at(address("b"));
    for _ in 0..2 {
        assert_eq!(reason(&node).await, "Redis at b:1 (without TLS) cannot be reached");
        sleep(MILLISECOND).await;
    }
}
