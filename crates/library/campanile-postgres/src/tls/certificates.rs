//! The trusted authorities and the client's certificate.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use campanile_core::BoxError;
use campanile_core::certificate::soon_expiry;
use campanile_core::error::sources;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;

use super::Connector;
use crate::{ConnectError, PgConfig};

/// Certificates and a key, as PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    ca: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

/// With the feature `tls`. If the server offers TLS, the store uses it unless the URL has
/// `sslmode=disable`. A server without TLS is rejected if the URL has `sslmode=require`. Whenever
/// TLS is used, the server's certificate is verified.
impl PgConfig {
    /// Trusts only the authorities with these certificates (PEM). Default: the authorities that the
    /// system trusts.
    pub fn with_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.ca = Some(pem.into());
        self
    }

    /// Sets the client's certificate, with the intermediate certificates up to its authority, and
    /// its private key (both PEM). Default: none; a server with a `pg_hba.conf` that requires a
    /// client certificate rejects the connection.
    ///
    /// The store keeps this certificate, so replace it by a restart. It is reported at WARN every hour
    /// while the store is used and a fifth of its lifetime is left, and at most 14 days.
    pub fn with_client_certificate(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificates.into(), key.into()));
        self
    }
}

impl Certificates {
    /// Creates a connector with these certificates.
    pub(crate) fn connector(&self, _: &Config) -> Result<Connector, ConnectError> {
        let config = self.config().map_err(|source| ConnectError::Certificate { source })?;
        Ok(Connector::new(config))
    }

    /// Logs a warning if the client's certificate expires soon.
    #[expect(clippy::disallowed_methods, reason = "only a warning; decides nothing")]
    pub(crate) fn report_expiry(&self, address: &str) {
        if let Some((pem, _)) = &self.client
            && let Some(left) = soon_expiry(pem, SystemTime::now())
        {
            tracing::warn!(
                address,
                ?left,
                "the client certificate for Postgres expires soon; new connections will then be \
                 refused. Restart this process with a new one: the store reads it only once"
            );
        }
    }

    fn config(&self) -> Result<ClientConfig, BoxError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    roots.add(certificate?)?;
                }
            }
            // Unreadable system certificates are skipped; verification of the server then fails if
            // it needed one of them.
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let Some((certificates, key)) = &self.client else {
            return Ok(config.with_no_client_auth());
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        Ok(config.with_client_auth_cert(chain?, PrivateKeyDer::from_pem_slice(key)?)?)
    }
}

/// Whether TLS verification failed, of the server or of the client.
pub(crate) fn is_verification_failure(error: &(dyn Error + 'static)) -> bool {
    let is_tls_error = |error: &(dyn Error + 'static)| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        error.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>())
    };
    sources(error).any(is_tls_error)
}
