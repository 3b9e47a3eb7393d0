//! TLS to the server, with the feature `tls`.

#[cfg(feature = "tls")]
mod certificates;

#[cfg(feature = "tls")]
pub(crate) use self::certificates::{Certificates, is_refusal};

/// Makes TLS connections.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;

/// Leaves every connection unencrypted.
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// Always `false`, because without TLS no certificate is checked.
#[cfg(not(feature = "tls"))]
pub(crate) fn is_refusal(_: &(dyn std::error::Error + 'static)) -> bool {
    false
}

/// Creates a connector without TLS, or fails if the URL requires TLS.
#[cfg(any(test, not(feature = "tls")))]
pub(crate) fn without(
    config: &tokio_postgres::Config,
) -> Result<tokio_postgres::NoTls, crate::ConnectError> {
    const FEATURE: &str = "`sslmode=require` needs the feature `postgres-tls` of the crate `campanile`, or \
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
    fn tls_that_is_not_built_in_is_told_with_its_feature() {
        let refused = without(&"postgres://db/app?sslmode=require".parse().unwrap()).unwrap_err();
        assert!(format!("{refused:?}").contains("`postgres-tls`"), "{refused:?}");
        for url in ["postgres://db/app", "postgres://db/app?sslmode=disable"] {
            assert!(without(&url.parse().unwrap()).is_ok(), "{url}");
        }
    }
}
