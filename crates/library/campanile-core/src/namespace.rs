//! The namespace of idempotency keys.

use std::fmt;
use std::sync::Arc;

use crate::error::ConfigError;

/// The first part of every key in a store: `[a-z0-9._-]`, 1 to 64 characters.
///
/// A namespace is mandatory, because applications that share a store would otherwise suppress each
/// other's events: within a namespace, equal keys are one event, whatever their topics and types.
/// Use one namespace for each kind of event in each consumer group.
///
/// Up to 9 characters keep the Redis key in the smaller allocation.
///
/// ```
/// use campanile_core::Namespace;
/// assert!(Namespace::try_from("payments").is_ok());
/// assert!(Namespace::try_from("Payments!").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The maximum length of a namespace, in characters.
    pub const MAX_LEN: usize = 64;

    /// Returns the namespace as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for Namespace {
    type Error = ConfigError;

    fn try_from(name: &str) -> Result<Self, ConfigError> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
        if name.is_empty() || name.len() > Self::MAX_LEN || !name.bytes().all(legal) {
            return Err(ConfigError::new(format!(
                "the namespace {name:?} does not match [a-z0-9._-]{{1,{}}}",
                Self::MAX_LEN
            )));
        }
        Ok(Self(name.into()))
    }
}

impl TryFrom<String> for Namespace {
    type Error = ConfigError;

    fn try_from(name: String) -> Result<Self, ConfigError> {
        Self::try_from(name.as_str())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({})", self.0)
    }
}
