//! Client certificates that expire.

use std::process::Command;

use campanile_redis::RedisStore;
use campanile_test::{Authority, RedisServer, free_port};

use crate::lines::Lines;
use crate::support::{acquire_lock, key, long_timeout};

/// Signs a client certificate for a day, of which an hour is left.
fn sign_for_an_hour(authority: &Authority) {
    authority.sign("client", "DNS:client").unwrap();
    let library = campanile_programs::faketime::library()
        .expect("`cargo xtask install` installs libfaketime");
    let sign = "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 \
        -extfile extensions -out client.crt";
    let output = Command::new("openssl")
        .args(sign.split_whitespace())
        .current_dir(authority.path("ca.crt").parent().unwrap())
        .env("LD_PRELOAD", library)
        .env("FAKETIME", "-23h")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn client_certificate_that_expires_soon_is_logged() {
    let authority = Authority::new().unwrap();
    authority.sign("server", "IP:127.0.0.1").unwrap();
    let (port, path) = (free_port().unwrap(), |file| authority.path(file).display().to_string());
    let _server = RedisServer::builder()
        .config("tls-port", &port.to_string())
        .config("tls-auth-clients", "yes")
        .config("tls-ca-cert-file", &path("ca.crt"))
        .config("tls-cert-file", &path("server.crt"))
        .config("tls-key-file", &path("server.key"))
        .start()
        .unwrap();
    let store = async || {
        let read = |file| authority.read(file).unwrap();
        let config = long_timeout(format!("rediss://127.0.0.1:{port}"))
            .with_ca(read("ca.crt"))
            .with_client_certificate(read("client.crt"), read("client.key"));
        RedisStore::connect(config).await.unwrap()
    };
    let lines = Lines::default();
    let _guard = lines.listen();
    authority.sign("client", "DNS:client").unwrap();
    acquire_lock(&store().await, &key("a"), 1).await;
    assert_eq!(lines.count(&["expires soon"]), 0, "{lines:?}");

    sign_for_an_hour(&authority);
    let store = store().await;
    acquire_lock(&store, &key("b"), 1).await;
    acquire_lock(&store, &key("c"), 1).await;
    assert_eq!(lines.count(&["WARN", "client certificate", "expires soon"]), 1, "{lines:?}");
}
