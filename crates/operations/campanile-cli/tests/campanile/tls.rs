//! Stores that require TLS.

use campanile_test::{Authority, PgServer, RedisServer, free_port};

use crate::{campanile, finish};

fn path(authority: &Authority, file: &str) -> String {
    authority.path(file).display().to_string()
}

/// Asserts that the store is reached with the authority and the client's certificate, and neither
/// without the one nor without the other.
fn check(authority: &Authority, store: &str, verb: &[&str]) {
    let run = |options: &[(&str, &str)]| {
        let mut command = campanile(verb);
        for (option, file) in options {
            command.arg(option).arg(path(authority, file));
        }
        command.env("CAMPANILE_STORE", store).env("CAMPANILE_NAMESPACE", "billing");
        finish(command)
    };
    let ca = ("--store-ca", "ca.crt");
    let client = [("--store-certificate", "client.crt"), ("--store-key", "client.key")];
    let (code, stdout, stderr) = run(&[ca, client[0], client[1]]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    for (options, why) in [
        (&client[..], Some("UnknownIssuer")),
        (&[ca], None),
        (&[ca, ("--store-certificate", "client.crt")], Some("--store-key")),
        (&[("--store-ca", "nowhere")], Some("cannot read")),
    ] {
        let (code, stdout, stderr) = run(options);
        assert!(matches!(code, Some(2 | 3)), "{options:?}: {stdout}{stderr}");
        assert!(why.is_none_or(|why| stderr.contains(why)), "{options:?}: {stderr}");
        assert!(!stderr.contains("s3cret") && !stdout.contains("s3cret"), "{stdout}{stderr}");
    }
}

#[test]
fn verbs_reach_redis_and_postgres_by_tls() {
    let authority = Authority::new().unwrap();
    authority.sign("server", "IP:127.0.0.1").unwrap();
    authority.sign("client", "DNS:client").unwrap();
    let port = free_port().unwrap();
    let _redis = RedisServer::builder()
        .password("s3cret")
        .config("tls-ca-cert-file", &path(&authority, "ca.crt"))
        .config("tls-cert-file", &path(&authority, "server.crt"))
        .config("tls-key-file", &path(&authority, "server.key"))
        .config("tls-port", &port.to_string())
        .config("tls-auth-clients", "yes")
        .start()
        .unwrap();
    check(&authority, &format!("rediss://:s3cret@127.0.0.1:{port}"), &["list"]);

    let [certificate, key, ca] =
        ["server.crt", "server.key", "ca.crt"].map(|name| authority.read(name).unwrap());
    let postgres = PgServer::builder().tls(certificate, key, Some(ca)).start().unwrap();
    let url = format!("{}?sslmode=require", postgres.url());
    check(&authority, &url, &["migrate", "--yes"]);
    check(&authority, &url, &["list"]);
}
