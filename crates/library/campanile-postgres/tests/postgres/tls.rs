//! Servers with TLS.

use campanile_postgres::{ConnectError, PgConfig, PgStore, migrate};
use campanile_test::{Authority, PgServer, PgServerBuilder};

use crate::support::{acquire_grant, chain, key, long_timeouts};

/// Configures a server with a certificate for its address.
fn builder(authority: &Authority, clients: Option<Vec<u8>>) -> PgServerBuilder {
    authority.sign("server", "IP:127.0.0.1").unwrap();
    let [certificate, key] = ["server.crt", "server.key"].map(|file| authority.read(file).unwrap());
    PgServer::builder().tls(certificate, key, clients)
}

async fn connect_and_acquire(config: PgConfig) -> Result<(), ConnectError> {
    migrate(config.clone()).await?;
    let store = PgStore::connect(config).await?;
    acquire_grant(&store, &key(fastrand::u64(..).to_string()), 1).await;
    Ok(())
}

#[tokio::test]
async fn only_a_server_with_trusted_authority_is_reached_by_tls() {
    let authority = Authority::new().unwrap();
    let server = builder(&authority, None).password("Wr1ghtW0rd").start().unwrap();
    let config = || long_timeouts(&format!("{}?sslmode=require", server.url()));
    connect_and_acquire(config().with_ca(authority.read("ca.crt").unwrap())).await.unwrap();

    for config in [config(), config().with_ca(Authority::new().unwrap().read("ca.crt").unwrap())] {
        let error = connect_and_acquire(config).await.unwrap_err();
        assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
        assert!(chain(&error).contains("UnknownIssuer"), "{}", chain(&error));
    }
    // Without `sslmode=require`, there is no retry without TLS.
    let error = connect_and_acquire(long_timeouts(&server.url())).await.unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
    // The certificate has another name.
    let by_name = server.url().replace("127.0.0.1", "localhost");
    for url in [format!("{by_name}?sslmode=require"), by_name] {
        let config = long_timeouts(&url).with_ca(authority.read("ca.crt").unwrap());
        let error = connect_and_acquire(config).await.unwrap_err();
        assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn client_certificate_is_sent_to_a_server_requiring_it() {
    let (authority, clients) = (Authority::new().unwrap(), Authority::new().unwrap());
    let server = builder(&authority, Some(clients.read("ca.crt").unwrap())).start().unwrap();
    clients.sign("us", "DNS:us").unwrap();
    let config = || long_timeouts(&server.url()).with_ca(authority.read("ca.crt").unwrap());
    let with = config()
        .with_client_certificate(clients.read("us.crt").unwrap(), clients.read("us.key").unwrap());
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
