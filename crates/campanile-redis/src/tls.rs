//! TLS to the servers, with the feature `tls`.

#[cfg(feature = "tls")]
mod certificates;

#[cfg(feature = "tls")]
pub(crate) use self::certificates::{Certificates, is_handshake_failure};

/// Without the feature `tls` there are no TLS errors.
#[cfg(not(feature = "tls"))]
pub(crate) fn is_handshake_failure(_: &redis::RedisError) -> bool {
    false
}
