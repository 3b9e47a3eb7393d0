//! Servers that require TLS.

use std::time::Duration;

use campanile_redis::{ConnectError, RedisConfig, RedisStore};
use campanile_test::{Authority, RedisSentinel, RedisServer, RedisServerBuilder, free_port};

use crate::support::{acquire_lock, chain, key, long_timeout};

/// Configures a server with the certificate `server`.
fn builder(authority: &Authority) -> RedisServerBuilder {
    let path = |file| authority.path(file).display().to_string();
    RedisServer::builder()
        .config("tls-ca-cert-file", &path("ca.crt"))
        .config("tls-cert-file", &path("server.crt"))
        .config("tls-key-file", &path("server.key"))
}

/// Starts a server with a certificate for its address, and builds its URL.
pub(crate) fn start_server(authority: &Authority, clients: &str) -> (RedisServer, String) {
    authority.sign("server", "IP:127.0.0.1").unwrap();
    let port = free_port().unwrap();
    let server = builder(authority)
        .password("Wr1ghtW0rd")
        .config("tls-port", &port.to_string())
        .config("tls-auth-clients", clients)
        .start()
        .unwrap();
    (server, format!("rediss://:Wr1ghtW0rd@127.0.0.1:{port}"))
}

#[tokio::test]
async fn server_is_trusted_only_by_its_authority() {
    let authority = Authority::new().unwrap();
    let (_server, url) = start_server(&authority, "no");
    let config = long_timeout(&*url).with_ca(authority.read("ca.crt").unwrap());
    let store = RedisStore::connect(config).await.unwrap();
    acquire_lock(&store, &key("key"), 1).await;

    let another = Authority::new().unwrap().read("ca.crt").unwrap();
    for config in [long_timeout(&*url).with_ca(another), long_timeout(&*url)] {
        let shown = format!("{config:?}");
        let error = RedisStore::connect(config).await.unwrap_err();
        assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
        let text = format!("{} {error:?} {shown} {store:?}", chain(&error));
        assert!(text.contains("UnknownIssuer"), "{text}");
        assert!(!text.contains("Wr1ghtW0rd"), "{text}");
    }
    // The certificate is valid for the address but not for this name.
    let other_name = url.replace("127.0.0.1", "localhost");
    let config = long_timeout(other_name).with_ca(authority.read("ca.crt").unwrap());
    let error = RedisStore::connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
}

#[tokio::test]
async fn client_certificate_is_presented_on_request() {
    let authority = Authority::new().unwrap();
    authority.sign("client", "DNS:client").unwrap();
    let (server, url) = start_server(&authority, "yes");
    let config = || long_timeout(&*url).with_ca(authority.read("ca.crt").unwrap());
    let error = RedisStore::connect(config()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");

    let own = config().with_client_certificate(
        authority.read("client.crt").unwrap(),
        authority.read("client.key").unwrap(),
    );
    assert!(!format!("{own:?}").contains("PRIVATE"), "{own:?}");
    let store = RedisStore::connect(own).await.unwrap();
    acquire_lock(&store, &key("key"), 1).await;
    // The next connection presents the certificate, too.
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    acquire_lock(&store, &key("other"), 1).await;
}

#[tokio::test]
async fn cluster_nodes_are_reached_over_tls() {
    let authority = Authority::new().unwrap();
    authority.sign("server", "IP:127.0.0.1").unwrap();
    let [port, bus] = [free_port().unwrap(), free_port().unwrap()].map(|port| port.to_string());
    let server = builder(&authority)
        .config("tls-port", &port)
        .config("tls-cluster", "yes")
        .config("tls-auth-clients", "no")
        .config("cluster-enabled", "yes")
        .config("cluster-port", &bus)
        .start()
        .unwrap();
    server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
    let is_up = || server.cli(&["CLUSTER", "INFO"]).unwrap().contains("state:ok").then_some(());
    campanile_test::eventually(std::time::Duration::from_secs(20), is_up).unwrap();

    let url = format!("rediss://127.0.0.1:{port}");
    let config = RedisConfig::cluster([url]).with_ca(authority.read("ca.crt").unwrap());
    let store = RedisStore::connect(config).await.unwrap();
    for n in 0..20 {
        acquire_lock(&store, &key(n.to_string()), 1).await;
    }
}

#[tokio::test]
async fn unusable_certificates_are_an_error() {
    for config in [
        // Refused because nothing would be encrypted.
        RedisConfig::new("redis://127.0.0.1")
            .with_ca(Authority::new().unwrap().read("ca.crt").unwrap()),
        RedisConfig::new("rediss://127.0.0.1").with_client_certificate("none", "n0ne"),
    ] {
        let error = RedisStore::connect(config).await.unwrap_err();
        assert!(matches!(error, ConnectError::Url { .. }), "{error:?}");
        assert!(!chain(&error).contains("n0ne"), "{error:?}");
    }
}

/// Sentinels that name this port of a server.
fn sentinels_of(port: &str, tls: Option<(&Authority, &str)>) -> RedisSentinel {
    let mut builder = RedisSentinel::builder().replicas(0).sentinels(1);
    if let Some((authority, port)) = tls {
        let path = |file| authority.path(file).display().to_string();
        for (name, value) in [
            ("tls-port", port),
            ("tls-auth-clients", "no"),
            ("tls-ca-cert-file", &path("ca.crt")),
            ("tls-cert-file", &path("server.crt")),
            ("tls-key-file", &path("server.key")),
        ] {
            builder = builder.sentinel_config(name, value);
        }
    }
    let sentinels = builder.start().unwrap();
    let (name, sentinel) = (sentinels.name(), sentinels.sentinel(0));
    sentinel.cli(&["SENTINEL", "REMOVE", name]).unwrap();
    sentinel.cli(&["SENTINEL", "MONITOR", name, "127.0.0.1", port, "1"]).unwrap();
    sentinels
}

#[tokio::test]
async fn servers_may_use_tls_and_their_sentinels_not() {
    let authority = Authority::new().unwrap();
    let (_server, url) = start_server(&authority, "no");
    let port = url.rsplit_once(':').unwrap().1;
    let sentinels = sentinels_of(port, None);
    let config = || {
        RedisConfig::sentinel(sentinels.name(), sentinels.urls())
            .with_credentials("default", "Wr1ghtW0rd")
    };
    let with_ca = || config().with_server_tls(true).with_ca(authority.read("ca.crt").unwrap());
    let store = RedisStore::connect(with_ca().with_connect_timeout(Duration::from_secs(30))).await;
    acquire_lock(&store.unwrap(), &key("key"), 1).await;

    // The message says which of the two failed, and how it was connected to.
    let expected = format!("Redis at 127.0.0.1:{port} (without TLS) cannot be reached");
    assert_fails(config(), &[&expected, "expects TLS"]).await;
    let expected = format!("Redis at 127.0.0.1:{port} (with TLS) cannot be reached");
    assert_fails(config().with_server_tls(true), &[&expected, "UnknownIssuer"]).await;
}

#[tokio::test]
async fn sentinels_may_use_tls_and_their_servers_not() {
    let authority = Authority::new().unwrap();
    authority.sign("server", "IP:127.0.0.1").unwrap();
    let server = RedisServer::start().unwrap();
    let port = free_port().unwrap().to_string();
    let sentinels = sentinels_of(&server.port().to_string(), Some((&authority, &port)));
    let config = || {
        RedisConfig::sentinel(sentinels.name(), [format!("rediss://127.0.0.1:{port}")])
            .with_ca(authority.read("ca.crt").unwrap())
    };
    let plain = config().with_server_tls(false).with_connect_timeout(Duration::from_secs(30));
    let store = RedisStore::connect(plain).await.unwrap();
    acquire_lock(&store, &key("key"), 1).await;

    let expected = format!("the server at {} (with TLS) did not answer", server.addr());
    assert_fails(config(), &[&expected]).await;
    let plain_sentinel = sentinels.sentinel(0).addr();
    let config = RedisConfig::sentinel(sentinels.name(), [format!("rediss://{plain_sentinel}")]);
    let expected = format!("the sentinel at {plain_sentinel} (with TLS) did not answer");
    assert_fails(config, &[&expected]).await;
}

/// Asserts that the store cannot connect for this reason. On a busy machine, a server that works may
/// not answer in the first time limit.
async fn assert_fails(config: RedisConfig, expected: &[&str]) {
    let mut text = String::new();
    for seconds in [1, 5, 20] {
        let config = config.clone().with_connect_timeout(Duration::from_secs(seconds));
        text = chain(&RedisStore::connect(config).await.unwrap_err());
        if expected.iter().all(|part| text.contains(part)) {
            return;
        }
    }
    panic!("{expected:?} is not in {text}");
}
