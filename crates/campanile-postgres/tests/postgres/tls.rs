//! Servers with TLS.

use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

use campanile_postgres::{ConnectError, PgConfig, PgStore, migrate};
use campanile_test::{PgServer, PgServerBuilder};
use tempfile::TempDir;

use crate::support::{acquire_grant, chain, key, long_timeouts};

/// An authority and the certificates that it has signed.
struct Authority {
    folder: TempDir,
}

impl Authority {
    fn new() -> Self {
        let authority = Self { folder: tempfile::tempdir().unwrap() };
        let name = fastrand::u64(..);
        authority.openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout ca.key -out ca.crt"
        ));
        authority
    }

    /// Creates a key and a certificate with this alternative name.
    fn sign(&self, name: &str, alternative: &str) {
        fs::write(self.path("ext"), format!("subjectAltName={alternative}\n")).unwrap();
        self.openssl(&format!(
            "req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
             -extfile ext -out {name}.crt"
        ));
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(self.folder.path());
        let output = command.output().unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => panic!("install openssl with `apt-get install openssl`"),
            _ => panic!("{error}"),
        });
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Configures a server with a certificate for its address.
    fn server(&self, clients: Option<Vec<u8>>) -> PgServerBuilder {
        self.sign("server", "IP:127.0.0.1");
        PgServer::builder().tls(self.read("server.crt"), self.read("server.key"), clients)
    }
}

async fn connect_and_acquire(config: PgConfig) -> Result<(), ConnectError> {
    migrate(config.clone()).await?;
    let store = PgStore::connect(config).await?;
    acquire_grant(&store, &key(fastrand::u64(..).to_string()), 1).await;
    Ok(())
}

#[tokio::test]
async fn only_a_server_with_trusted_authority_is_reached_by_tls() {
    let authority = Authority::new();
    let server = authority.server(None).password("Wr1ghtW0rd").start().unwrap();
    let config = || long_timeouts(&format!("{}?sslmode=require", server.url()));
    connect_and_acquire(config().with_ca(authority.read("ca.crt"))).await.unwrap();

    for config in [config(), config().with_ca(Authority::new().read("ca.crt"))] {
        let error = connect_and_acquire(config).await.unwrap_err();
        assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
        assert!(chain(&error).contains("UnknownIssuer"), "{}", chain(&error));
    }
    // The certificate has another name.
    let by_name = server.url().replace("127.0.0.1", "localhost");
    let config = long_timeouts(&by_name).with_ca(authority.read("ca.crt"));
    let error = connect_and_acquire(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
}

#[tokio::test]
async fn client_certificate_is_sent_to_a_server_requiring_it() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = authority.server(Some(clients.read("ca.crt"))).start().unwrap();
    clients.sign("us", "DNS:us");
    let config = || long_timeouts(&server.url()).with_ca(authority.read("ca.crt"));
    let with = config().with_client_certificate(clients.read("us.crt"), clients.read("us.key"));
    connect_and_acquire(with).await.unwrap();
    let error = connect_and_acquire(config()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn server_without_tls_is_rejected_if_tls_is_required() {
    let server = PgServer::start().unwrap();
    let error = connect_and_acquire(long_timeouts(&format!("{}?sslmode=require", server.url())))
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(chain(&error).contains("TLS"), "{}", chain(&error));
    connect_and_acquire(long_timeouts(&server.url())).await.unwrap();
}

#[tokio::test]
async fn unreadable_certificate_is_an_error() {
    let config = long_timeouts("postgres://127.0.0.1").with_client_certificate("no", "certificate");
    let error = connect_and_acquire(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
}
