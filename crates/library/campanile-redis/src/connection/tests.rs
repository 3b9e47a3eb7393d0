use redis::IntoConnectionInfo;

use super::*;
use crate::connector::{Connector, Secrets};
use crate::simulation::ScriptedServers;
use crate::topology::Address;

fn shared_connection(url: &str) -> Arc<SharedConnection> {
    let server = Endpoint::new(url.into_connection_info().unwrap(), Secrets::default());
    SharedConnection::new(server, Duration::from_secs(1), Arc::default())
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

#[tokio::test]
async fn silence_replaces_other_connections_to_same_server_once() {
    let _servers = ScriptedServers::start(|_, _| None);
    let info = "redis://a:1".into_connection_info().unwrap();
    let connector = Connector::new(Endpoint::new(info, Secrets::default()), Duration::from_secs(1));
    let connection = |host: &str| connector.connection(&Address { host: host.into(), port: 1 });
    let [silent, keeper, other] = ["a", "a", "b"].map(connection);
    let [handle, of_keeper, _] =
        [silent.get().await.unwrap(), keeper.get().await.unwrap(), other.get().await.unwrap()];
    handle.report_silence();
    assert!(keeper.current().is_none());
    assert!(other.current().is_some(), "another server");
    let new = keeper.get().await.unwrap();
    // A call that was in flight over the previous connection.
    of_keeper.report_silence();
    assert!(keeper.current().is_some_and(|current| current.is_same(&new)));
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
