//! TLS to the server, if the feature is there.

#[cfg(feature = "tls")]
mod certificates;

#[cfg(feature = "tls")]
pub(crate) use self::certificates::{Certificates, is_refusal};

/// What makes a connection one of TLS.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;

/// What leaves every connection as it is.
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// Without TLS no certificate is looked at.
#[cfg(not(feature = "tls"))]
pub(crate) fn is_refusal(_: &(dyn std::error::Error + 'static)) -> bool {
    false
}
