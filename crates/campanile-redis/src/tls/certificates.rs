//! Who is trusted, and who we are.

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
    own: Option<(Vec<u8>, Vec<u8>)>,
}

/// With the feature `tls`. A URL that begins with `rediss://` is reached by TLS, and so are all servers
/// that its sentinels or its cluster name.
impl RedisConfig {
    /// Trusts the authorities whose certificates these are (PEM), and no others. Default: those that
    /// the system trusts.
    pub fn with_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.authority = Some(pem.into());
        self
    }

    /// Shows the servers this certificate, with those that lead to its authority, and its private
    /// key (both PEM). Default: none, which a server refuses that has `tls-auth-clients yes`.
    pub fn with_client_certificate(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.own = Some((certificates.into(), key.into()));
        self
    }
}

impl Certificates {
    /// The server, reached with these.
    pub(crate) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, ConnectError> {
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            provide_cryptography();
        }
        let Self { authority, own } = self;
        if authority.is_none() && own.is_none() {
            return Ok(info);
        }
        let own = own.clone();
        let certificates = TlsCertificates {
            client_tls: own
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: authority.clone(),
        };
        let client = Client::build_with_tls(info, certificates).map_err(ConnectError::url)?;
        Ok(client.get_connection_info().clone())
    }
}

/// The process has one for all; where somebody has chosen it, or will have, ours is not needed.
fn provide_cryptography() {
    if CryptoProvider::get_default().is_none() {
        // It fails only when somebody else was faster.
        let _ = ring::default_provider().install_default();
    }
}

/// Whether TLS has refused the server, or the server us.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    // As the library wraps it, which shows the error of TLS as no source.
    let shared = error.source().and_then(|s| s.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let failed = shared.and_then(|shared| shared.downcast_ref::<io::Error>());
    failed.and_then(io::Error::get_ref).is_some_and(|error| error.is::<rustls::Error>())
}
