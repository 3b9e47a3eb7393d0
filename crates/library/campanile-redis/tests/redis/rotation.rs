//! Secrets that are replaced while the store is used.

use std::fs;
use std::sync::{Arc, Mutex};

use campanile_redis::{ConnectError, RedisStore};
use campanile_test::{Authority, RedisServer};

use crate::support::{acquire, acquire_lock, apply, chain, key, long_timeout};
use crate::tls::start_server;

fn break_connections(server: &RedisServer) {
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
}

#[tokio::test]
async fn rotated_client_certificate_is_used_without_restart() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let (server, url) = start_server(&authority, "yes");
    let [certificate, key_file] = ["client.crt", "client.key"].map(|file| authority.path(file));
    let (ca, read) = (authority.path("ca.crt"), (certificate.clone(), key_file.clone()));
    let config = long_timeout(url)
        .with_ca_from(move || fs::read(&ca))
        .with_client_certificate_from(move || Ok((fs::read(&read.0)?, fs::read(&read.1)?)));
    let error = RedisStore::connect(config.clone()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Config(_)), "{error:?}");
    assert!(error.to_string().contains("client certificate for Redis cannot be read"), "{error}");

    authority.sign("client", "DNS:client").unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    acquire_lock(&store, &key("a"), 1).await;
    // As one that has expired, it is refused.
    other.sign("client", "DNS:client").unwrap();
    fs::copy(other.path("client.crt"), &certificate).unwrap();
    fs::copy(other.path("client.key"), &key_file).unwrap();
    break_connections(&server);
    apply(&store, &key("b"), acquire(1)).await.unwrap_err();
    authority.sign("client", "DNS:client").unwrap();
    acquire_lock(&store, &key("b"), 1).await;
}

#[tokio::test]
async fn rotated_password_is_used_without_restart() {
    let server = RedisServer::start().unwrap();
    let password = Arc::new(Mutex::new("f1rst"));
    let current = Arc::clone(&password);
    server.cli(&["ACL", "SETUSER", "app", "on", ">f1rst", "~*", "+@all"]).unwrap();
    let config = long_timeout(server.url())
        .with_credentials_from(move || Ok(("app".into(), (*current.lock().unwrap()).into())));
    let store = RedisStore::connect(config).await.unwrap();
    acquire_lock(&store, &key("a"), 1).await;
    server.cli(&["ACL", "SETUSER", "app", "resetpass", ">s3cond"]).unwrap();
    break_connections(&server);
    let error = apply(&store, &key("b"), acquire(1)).await.unwrap_err();
    assert!(!chain(&error).contains("f1rst"), "{}", chain(&error));
    *password.lock().unwrap() = "s3cond";
    acquire_lock(&store, &key("b"), 1).await;
}
