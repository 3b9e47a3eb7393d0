//! Trusted certificate authorities and the client certificate.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};

use crate::{ConnectError, RedisConfig};

/// Certificates and a key, as PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    authority: Option<Vec<u8>>,
    client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

/// Methods of the feature `tls`. TLS is used for URLs that begin with `rediss://`, and for all
/// servers that the sentinels or the cluster at such a URL name.
impl RedisConfig {
    /// Trusts the certificate authorities in this PEM and no others. Default: the authorities that
    /// the system trusts.
    pub fn with_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.authority = Some(pem.into());
        self
    }

    /// Presents this client certificate, with its chain, and authenticates with its private key
    /// (both PEM). Default: none, which a server with `tls-auth-clients yes` refuses.
    pub fn with_client_certificate(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client_certificate = Some((certificates.into(), key.into()));
        self
    }
}

impl Certificates {
    /// Adds the certificates to a server's connection info.
    pub(crate) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, ConnectError> {
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            install_crypto_provider();
        }
        let Self { authority, client_certificate } = self;
        if authority.is_none() && client_certificate.is_none() {
            return Ok(info);
        }
        let client_certificate = client_certificate.clone();
        let certificates = TlsCertificates {
            client_tls: client_certificate
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: authority.clone(),
        };
        let client = Client::build_with_tls(info, certificates).map_err(ConnectError::url)?;
        Ok(client.get_connection_info().clone())
    }
}

/// Installs a default crypto provider. The process has a single one, so a provider that the
/// application has installed is kept.
fn install_crypto_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only if another thread has just installed a provider, which serves as well.
        let _ = ring::default_provider().install_default();
    }
}

/// Checks whether the TLS handshake failed because either side rejected the other.
pub(crate) fn is_handshake_failure(error: &RedisError) -> bool {
    // The `redis` crate wraps the I/O error in an `Arc` and does not expose the TLS error as a
    // source.
    let shared = error.source().and_then(|s| s.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let failed = shared.and_then(|shared| shared.downcast_ref::<io::Error>());
    failed.and_then(io::Error::get_ref).is_some_and(|error| error.is::<rustls::Error>())
}
