//! Stores that require TLS.

use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

use campanile_test::{PgServer, RedisServer, free_port};
use tempfile::TempDir;

use crate::{campanile, finish};

/// Certificates for a server at 127.0.0.1 and for a client, signed by the same authority.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let certificates = Self(tempfile::tempdir().unwrap());
        certificates.openssl(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
        );
        for (name, alternative) in [("server", "IP:127.0.0.1"), ("client", "DNS:client")] {
            let extensions = format!("subjectAltName={alternative}\n");
            fs::write(certificates.path("extensions"), extensions).unwrap();
            certificates.openssl(&format!(
                "req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ));
            certificates.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
                 -extfile extensions -out {name}.crt"
            ));
        }
        certificates
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(self.0.path());
        let output = command.output().unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => panic!("install it with `apt-get install openssl`"),
            _ => panic!("{error}"),
        });
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Asserts that the store is reached with the authority and the client's certificate, and neither
    /// without the one nor without the other. `before` is what the first verb needs.
    fn check(&self, store: &str, verb: &[&str]) {
        let run = |options: &[(&str, &str)]| {
            let mut command = campanile(verb);
            for (option, file) in options {
                command.args([*option, &self.text(file)]);
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
}

#[test]
fn verbs_reach_redis_and_postgres_by_tls() {
    let certificates = Certificates::new();
    let port = free_port().unwrap();
    let _redis = RedisServer::builder()
        .password("s3cret")
        .config("tls-ca-cert-file", &certificates.text("ca.crt"))
        .config("tls-cert-file", &certificates.text("server.crt"))
        .config("tls-key-file", &certificates.text("server.key"))
        .config("tls-port", &port.to_string())
        .config("tls-auth-clients", "yes")
        .start()
        .unwrap();
    certificates.check(&format!("rediss://:s3cret@127.0.0.1:{port}"), &["list"]);

    let [certificate, key, ca] =
        ["server.crt", "server.key", "ca.crt"].map(|name| certificates.read(name));
    let postgres = PgServer::builder().tls(certificate, key, Some(ca)).start().unwrap();
    let url = format!("{}?sslmode=require", postgres.url());
    certificates.check(&url, &["migrate", "--yes"]);
    certificates.check(&url, &["list"]);
}
