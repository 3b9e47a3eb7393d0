//! TLS to the server, with the feature `tls`.

#[cfg(feature = "tls")]
mod certificates;

#[cfg(feature = "tls")]
pub(crate) use self::certificates::{Certificates, is_verification_failure};

/// Makes TLS connections.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;

/// Leaves every connection unencrypted.
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// Without the feature `tls` there are none.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Default)]
pub(crate) struct Certificates {}

#[cfg(not(feature = "tls"))]
impl Certificates {
    pub(crate) fn connector(
        &self,
        config: &tokio_postgres::Config,
    ) -> Result<Connector, crate::ConnectError> {
        no_tls(config)
    }

    pub(crate) fn report_expiry(&self, _: &str) {}
}

/// Always `false`, because without TLS no certificate is checked.
#[cfg(not(feature = "tls"))]
pub(crate) fn is_verification_failure(_: &(dyn std::error::Error + 'static)) -> bool {
    false
}

/// Creates a connector without TLS, or fails if the URL requires TLS.
#[cfg(any(test, not(feature = "tls")))]
pub(crate) fn no_tls(
    config: &tokio_postgres::Config,
) -> Result<tokio_postgres::NoTls, crate::ConnectError> {
    const FEATURE: &str = "`sslmode=require` needs TLS: enable the feature `postgres-tls` of `campanile`, or \
        `tls` of `campanile-postgres`";
    if config.get_ssl_mode() == tokio_postgres::config::SslMode::Require {
        return Err(crate::ConnectError::Url { source: FEATURE.into() });
    }
    Ok(tokio_postgres::NoTls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tls_feature_error_names_the_feature() {
        let error = no_tls(&"postgres://db/app?sslmode=require".parse().unwrap()).unwrap_err();
        assert!(format!("{error:?}").contains("`postgres-tls` of `campanile`"), "{error:?}");
        for url in ["postgres://db/app", "postgres://db/app?sslmode=disable"] {
            assert!(no_tls(&url.parse().unwrap()).is_ok(), "{url}");
        }
    }
}
