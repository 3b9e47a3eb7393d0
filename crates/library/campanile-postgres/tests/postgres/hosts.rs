//! Hosts that do not respond, and connections that take long to open.

use std::time::Duration;

use campanile_core::Reply;
use campanile_postgres::{PgConfig, PgStore, migrate};
use campanile_test::{PgServer, Proxy};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::support::{
    acquire, acquire_grant, apply, apply_until_answered, key, long_timeouts, short_timeouts,
};

/// Starts a server with the schema. The first host of the URL is a proxy in front of it.
async fn server_behind_proxy() -> (PgServer, Proxy, String) {
    let server = PgServer::start().unwrap();
    migrate(long_timeouts(&server.url())).await.unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let url = format!("postgres://postgres@{},{}/postgres", proxy.addr(), server.addr());
    (server, proxy, url)
}

#[tokio::test]
async fn silent_first_host_does_not_hide_another() {
    let (_server, proxy, url) = server_behind_proxy().await;
    proxy.swallow_requests();
    let config = PgConfig::new(&*url).with_connect_timeout(Duration::from_secs(60));
    let connecting = tokio::time::timeout(Duration::from_secs(30), PgStore::connect(config));
    let store = connecting.await.expect("before the connect timeout").unwrap();
    apply_until_answered(&store, &key("key"), acquire(1)).await;
}

#[tokio::test]
async fn host_that_stops_answering_is_replaced_by_another() {
    let (_server, proxy, url) = server_behind_proxy().await;
    // A slow call that timed out would open a connection, and might ask the proxy as well.
    let config = short_timeouts(&url).with_command_timeout(Duration::from_secs(2));
    let store = PgStore::connect(config).await.unwrap();
    let key = key("key");
    apply_until_answered(&store, &key, acquire(1)).await;
    proxy.swallow_requests();
    let reply = apply_until_answered(&store, &key, acquire(1)).await;
    assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
    assert!(proxy.swallowed() > 0, "the proxy was not asked first");
    // The proxy may count late what it was sent before.
    let mut swallowed = 0;
    while swallowed != proxy.swallowed() {
        swallowed = proxy.swallowed();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The other host is asked first from now on.
    for _ in 0..3 {
        apply_until_answered(&store, &key, acquire(1)).await;
        assert_eq!(proxy.swallowed(), swallowed);
    }
}

#[tokio::test]
async fn connection_slower_than_a_call_serves_the_next_call() {
    let (server, proxy, _) = server_behind_proxy().await;
    let config = PgConfig::new(server.url_through(proxy.addr()));
    let store = PgStore::connect(config.with_connect_timeout(Duration::from_secs(60)));
    let store = store.await.unwrap();
    // Opening a connection takes four round trips and the first call over it two: 1.2 s, more than
    // the command timeout.
    proxy.delay(Duration::from_millis(100));
    let key = key("key");
    apply(&store, &key, acquire(1)).await.unwrap_err();
    apply_until_answered(&store, &key, acquire(1)).await;
}

#[tokio::test]
async fn failed_host_is_retried_while_another_is_silent() {
    let (mut server, proxy, url) = server_behind_proxy().await;
    let store = PgStore::connect(short_timeouts(&url)).await.unwrap();
    apply_until_answered(&store, &key("before"), acquire(1)).await;
    proxy.swallow_requests();
    server.kill().unwrap();
    apply(&store, &key("while"), acquire(1)).await.unwrap_err();
    server.restart().unwrap();
    acquire_grant(&PgStore::connect(long_timeouts(&url)).await.unwrap(), &key("after"), 1).await;
    apply_until_answered(&store, &key("while"), acquire(1)).await;
}

#[tokio::test]
async fn session_starts_without_options_that_poolers_reject() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://app@{}/app?sslmode=disable", listener.local_addr().unwrap());
    let connecting = tokio::spawn(PgStore::connect(long_timeouts(&url)));
    let mut start = vec![0; 1024];
    let read = listener.accept().await.unwrap().0.read(&mut start).await.unwrap();
    let start = String::from_utf8_lossy(&start[..read]).into_owned();
    assert!(start.contains("application_name") && !start.contains("options"), "{start:?}");
    connecting.abort();
}
