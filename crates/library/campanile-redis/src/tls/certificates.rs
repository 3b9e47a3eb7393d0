//! Trusted certificate authorities and the client certificate.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use campanile_core::certificate::soon_expiry;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisError, RedisResult,
    TlsCertificates,
};
use rustls::crypto::{CryptoProvider, ring};

use crate::connector::{ReadSecret, read};
use crate::{ConnectError, RedisConfig};

/// Certificates and a key, as PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    authority: Option<ReadSecret<Vec<u8>>>,
    client_certificate: Option<ReadSecret<(Vec<u8>, Vec<u8>)>>,
}

/// Methods of the feature `tls`. TLS is used for URLs that begin with `rediss://`, and for all
/// servers that the sentinels or the cluster at such a URL name.
impl RedisConfig {
    /// Trusts the certificate authorities in this PEM and no others. Default: the authorities that
    /// the system trusts.
    pub fn with_ca(self, pem: impl Into<Vec<u8>>) -> Self {
        let pem = pem.into();
        self.with_ca_from(move || Ok(pem.clone()))
    }

    /// Reads the PEM of [`with_ca`](Self::with_ca) for each new connection, as
    /// [`with_client_certificate_from`](Self::with_client_certificate_from) does.
    pub fn with_ca_from(
        mut self,
        read: impl Fn() -> io::Result<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        self.secrets.certificates.authority = Some(Arc::new(read));
        self
    }

    /// Presents this client certificate, with its chain, and authenticates with its private key
    /// (both PEM). Default: none, which a server with `tls-auth-clients yes` refuses.
    pub fn with_client_certificate(
        self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let pem = (certificates.into(), key.into());
        self.with_client_certificate_from(move || Ok(pem.clone()))
    }

    /// Reads the client certificate, with its chain, and its key for each new connection, so that
    /// rotated files need no restart. Replaces
    /// [`with_client_certificate`](Self::with_client_certificate).
    ///
    /// A certificate of which a fifth of its lifetime is left, and at most 14 days, is reported at
    /// WARN every hour while the store is used.
    ///
    /// ```
    /// # use campanile_redis::RedisConfig;
    /// let config = RedisConfig::new("rediss://redis.internal").with_client_certificate_from(|| {
    ///     Ok((std::fs::read("/certificates/tls.crt")?, std::fs::read("/certificates/tls.key")?))
    /// });
    /// ```
    pub fn with_client_certificate_from(
        mut self,
        read: impl Fn() -> io::Result<(Vec<u8>, Vec<u8>)> + Send + Sync + 'static,
    ) -> Self {
        self.secrets.certificates.client_certificate = Some(Arc::new(read));
        self
    }
}

impl Certificates {
    /// Reads the certificates.
    pub(crate) fn read(&self) -> io::Result<TlsCertificates> {
        let client = read(self.client_certificate.as_ref(), "client certificate")?;
        let client_tls =
            client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let root_cert = read(self.authority.as_ref(), "certificate authority")?;
        Ok(TlsCertificates { client_tls, root_cert })
    }

    /// Fails if the certificates are unusable, or if they are `required` and there is no TLS.
    pub(crate) fn check(&self, info: &ConnectionInfo, required: bool) -> Result<(), ConnectError> {
        let is_set = self.authority.is_some() || self.client_certificate.is_some();
        if required && is_set && !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            const SCHEME: &str = "certificates need a URL that begins with `rediss://`";
            return Err(ConnectError::Url { source: SCHEME.into() });
        }
        self.apply(info.clone()).map(|_| ()).map_err(ConnectError::url)
    }

    /// Adds the certificates to a server's connection info.
    pub(crate) fn apply(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Ok(info);
        }
        install_crypto_provider();
        let certificates = self.read()?;
        if certificates.client_tls.is_none() && certificates.root_cert.is_none() {
            return Ok(info);
        }
        Ok(Client::build_with_tls(info, certificates)?.get_connection_info().clone())
    }

    /// Logs a warning if the client certificate expires soon.
    pub(crate) fn report_expiry(&self, now: SystemTime) {
        let Ok(TlsCertificates { client_tls: Some(client), .. }) = self.read() else { return };
        if let Some(left) = soon_expiry(&client.client_cert, now) {
            tracing::warn!(
                ?left,
                "the client certificate for Redis expires soon; new connections will then be \
                 refused. Replace its files if the store reads them for each connection \
                 (with_client_certificate_from); otherwise also restart"
            );
        }
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
