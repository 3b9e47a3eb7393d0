//! TLS to the servers, with the feature `tls`.

#[cfg(feature = "tls")]
mod certificates;

#[cfg(feature = "tls")]
pub(crate) use self::certificates::{Certificates, is_handshake_failure};

/// Fails if the URL requires TLS.
#[cfg(any(test, not(feature = "tls")))]
pub(crate) fn no_tls(url: &str) -> Result<(), crate::ConnectError> {
    const FEATURE: &str = "`rediss://` needs TLS: enable the feature `redis-tls` of `campanile`, or `tls` of \
        `campanile-redis`";
    match url.starts_with("rediss://") {
        true => Err(crate::ConnectError::Url { source: FEATURE.into() }),
        false => Ok(()),
    }
}

/// Without the feature `tls` there are no TLS errors.
#[cfg(not(feature = "tls"))]
pub(crate) fn is_handshake_failure(_: &redis::RedisError) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tls_feature_error_names_the_feature() {
        let error = no_tls("rediss://app:s3cret@redis:6379").unwrap_err();
        let text = format!("{error:?}");
        assert!(text.contains("`redis-tls` of `campanile`") && !text.contains("s3cret"), "{text}");
        assert!(no_tls("redis://redis:6379").is_ok());
    }
}
