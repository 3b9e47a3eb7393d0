//! TLS to the servers, if the feature is there.

#[cfg(feature = "tls")]
mod certificates;

#[cfg(feature = "tls")]
pub(crate) use self::certificates::{Certificates, is_refusal};

/// Without TLS no certificate is looked at.
#[cfg(not(feature = "tls"))]
pub(crate) fn is_refusal(_: &redis::RedisError) -> bool {
    false
}
