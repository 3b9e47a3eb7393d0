//! Errors of connecting.

use std::net::TcpListener;
use std::time::Duration;

use campanile_core::Reply;
use campanile_redis::{ConnectError, RedisConfig, RedisStore, Safety};
use campanile_test::{RedisServer, free_port};

use crate::support::{
    MAX_CALL_TIME, acquire, acquire_lock, apply, chain, complete, key, long_timeout, timed,
};

#[tokio::test]
async fn unreachable_server_error_shows_its_address() {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let bound = Duration::from_millis(300);
    let config = RedisConfig::new(format!("redis://{address}"));
    let config = config.with_connect_timeout(bound);
    let (took, error) = timed(RedisStore::connect(config)).await;
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { after, .. } if after == bound), "{error:?}");
    let text = chain(&error);
    for part in [&*address, "refused", "with_connect_timeout"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(took < MAX_CALL_TIME, "{took:?}");
}

#[tokio::test]
async fn unreachable_cluster_or_sentinels_error_names_all_addresses() {
    let [a, b] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port().unwrap()));
    let urls = [&a, &b].map(|address| format!("redis://{address}"));
    for (config, expected) in [
        (RedisConfig::cluster(urls.clone()), format!("the cluster of {a}, {b} ")),
        (
            RedisConfig::sentinel("main", urls),
            format!("the primary `main` of the sentinels at {a}, {b} "),
        ),
    ] {
        let config = config.with_connect_timeout(Duration::from_millis(300));
        let error = RedisStore::connect(config).await.unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
        let text = chain(&error);
        assert!(text.contains(&expected), "{text}");
    }
}

#[tokio::test]
async fn connect_waits_for_server_started_later() {
    let port = free_port().unwrap();
    let start = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let start = move || RedisServer::builder().port(port).start().unwrap();
        tokio::task::spawn_blocking(start).await.unwrap()
    };
    let connect = RedisStore::connect(long_timeout(format!("redis://127.0.0.1:{port}")));
    let (_server, store) = tokio::join!(start, connect);
    acquire_lock(&store.unwrap(), &key("key"), 1).await;
}

#[tokio::test]
async fn connect_waits_for_loading_server() {
    let mut server = RedisServer::builder()
        .config("key-load-delay", "1000")
        .config("loading-process-events-interval-bytes", "1024")
        .start()
        .unwrap();
    let fill = "for i = 1, 1000 do redis.call('SET', string.format('%064d', i), i) end";
    server.cli(&["EVAL", fill, "0"]).unwrap();
    server.cli(&["SAVE"]).unwrap();
    let url = server.url();
    server.kill().unwrap();
    let restart = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let store = RedisStore::connect(long_timeout(url)).await.unwrap();
    // A server that is still loading would refuse the command.
    let reply = apply(&store, &key("key"), acquire(1)).await.unwrap();
    assert!(matches!(reply, Reply::Acquired { .. }), "{reply:?}");
    drop(restart.await.unwrap());
}

#[tokio::test]
async fn connect_to_hung_server_times_out() {
    let mut server = RedisServer::start().unwrap();
    server.pause().unwrap();
    let bound = Duration::from_millis(300);
    let config = RedisConfig::new(server.url()).with_connect_timeout(bound);
    let (took, error) = timed(RedisStore::connect(config)).await;
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { after, .. } if after == bound));
    assert!(error.to_string().contains(&server.addr().to_string()), "{error}");
    assert!(took < MAX_CALL_TIME, "{took:?}");
}

#[tokio::test]
async fn connect_to_non_redis_server_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let web_server = std::thread::spawn(move || {
        use std::io::Write;
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let url = format!("redis://{address}");
    let error = RedisStore::connect(long_timeout(url)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    web_server.join().unwrap();
}

#[tokio::test]
async fn wrong_or_missing_password_is_denied_and_not_shown() {
    let server = RedisServer::builder().password("Wr1ghtW0rd").start().unwrap();
    let at = server.addr();
    for url in [
        format!("redis://{at}"),
        format!("redis://:Wr0ngW0rd@{at}"),
        format!("redis://Ab3l:Wr0ngW0rd@{at}"),
    ] {
        let error = RedisStore::connect(long_timeout(url)).await.unwrap_err();
        assert!(matches!(error, ConnectError::Denied { .. }), "{error:?}");
        let text = format!("{} {error:?}", chain(&error));
        assert!(text.contains(&at.to_string()), "{text}");
        assert!(!text.contains("Wr0ngW0rd") && !text.contains("Ab3l"), "{text}");
    }
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    assert!(!format!("{store:?}").contains("Wr1ghtW0rd"));
    acquire_lock(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn server_without_free_connections_is_named_as_the_cause() {
    let server = RedisServer::builder().config("maxclients", "1").start().unwrap();
    let _only = crate::support::raw_connection(&server);
    let config = RedisConfig::new(server.url()).with_connect_timeout(Duration::from_millis(500));
    let text = chain(&RedisStore::connect(config).await.unwrap_err());
    assert!(text.contains("maxclients"), "{text}");
}

#[tokio::test]
async fn invalid_url_is_an_error() {
    for url in ["", "localhost", "http://127.0.0.1", "redis://127.0.0.1/x"] {
        let error = RedisStore::connect(url).await.unwrap_err();
        assert!(matches!(error, ConnectError::Url { .. }), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn evicting_server_is_refused_unless_accepted() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = RedisServer::builder()
            .config("maxmemory", "100mb")
            .config("maxmemory-policy", policy)
            .start()
            .unwrap();
        let error = RedisStore::connect(long_timeout(server.url())).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unsafe { .. }), "{error:?}");
        assert!(error.to_string().contains(policy), "{error}");
        let accepted = long_timeout(server.url()).with_safety(Safety::Warn);
        let store = RedisStore::connect(accepted).await.unwrap();
        acquire_lock(&store, &key("key"), 1).await;
    }
}

#[tokio::test]
async fn cluster_node_is_refused_as_single_server() {
    let server = RedisServer::builder().config("cluster-enabled", "yes").start().unwrap();
    let error = RedisStore::connect(long_timeout(server.url())).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unsafe { .. }), "{error:?}");
}

#[tokio::test]
async fn minimal_permissions_are_sufficient() {
    let server = RedisServer::builder()
        .config("user", "app on >pw ~campanile:* ~{* -@all +eval +evalsha +get +mget +set +time")
        .start()
        .unwrap();
    let store = RedisStore::connect(long_timeout(format!("redis://app:pw@{}", server.addr())))
        .await
        .unwrap();
    let key = key("key");
    let grant = acquire_lock(&store, &key, 1).await;
    let renew = campanile_core::Operation::Renew { grant, ttl: Duration::from_secs(30) };
    assert_eq!(apply(&store, &key, renew).await.unwrap(), Reply::Renewed);
    assert_eq!(apply(&store, &key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    assert!(matches!(apply(&store, &key, acquire(2)).await.unwrap(), Reply::Duplicate { .. }));
}

#[tokio::test]
async fn store_without_free_connection_names_the_cause() {
    let server = RedisServer::start().unwrap();
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let _only = crate::support::raw_connection(&server);
    server.cli(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    let error = apply(&store, &key("a"), acquire(1)).await.unwrap_err();
    assert!(chain(&error).contains("maxclients"), "{}", chain(&error));
}
