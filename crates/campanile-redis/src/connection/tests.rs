use redis::IntoConnectionInfo;

use super::*;
use crate::simulation::ScriptedServers;

fn shared_connection(url: &str) -> Arc<SharedConnection> {
    SharedConnection::new(url.into_connection_info().unwrap(), Duration::from_secs(1))
}

#[tokio::test]
async fn handles_are_same_only_on_one_connection() {
    let _servers = ScriptedServers::start(|_, _| None);
    let [shared, other] = ["redis://a:1", "redis://b:2"].map(shared_connection);
    let handle = shared.get().await.unwrap();
    assert!(handle.is_same(&shared.get().await.unwrap()));
    // The first connection to each server.
    assert!(!handle.is_same(&other.get().await.unwrap()));
    handle.discard(&"test");
    assert!(!handle.is_same(&shared.get().await.unwrap()));
}

#[tokio::test]
async fn late_discard_keeps_the_new_connection() {
    let _servers = ScriptedServers::start(|_, _| None);
    let shared = shared_connection("redis://a:1");
    let discarded = shared.get().await.unwrap();
    discarded.discard(&"test");
    assert!(shared.current().is_none());
    let new = shared.get().await.unwrap();
    discarded.discard(&"test");
    assert!(shared.current().is_some_and(|current| current.is_same(&new)));
}

#[tokio::test(start_paused = true)]
async fn bucket_count_is_checked_again_after_10_seconds() {
    let _servers = ScriptedServers::start(|_, _| None);
    let handle = shared_connection("redis://a:1").get().await.unwrap();
    let namespace = "payments".try_into().unwrap();
    assert!(!handle.has_checked_buckets(&namespace));
    handle.set_buckets_checked(&namespace);
    let millisecond = Duration::from_millis(1);
    tokio::time::advance(Duration::from_secs(10) - millisecond).await;
    assert!(handle.has_checked_buckets(&namespace));
    tokio::time::advance(millisecond).await;
    assert!(!handle.has_checked_buckets(&namespace));
}
