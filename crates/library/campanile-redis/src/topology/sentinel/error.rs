//! Errors of the search for a primary.

use std::fmt;

use campanile_core::{BoxError, error};
use redis::RedisError;

use crate::error::is_transient;

/// No server was found that is the primary.
#[derive(Debug)]
pub(crate) struct NoPrimary {
    pub(super) name: Box<str>,
    pub(super) reasons: Vec<BoxError>,
}

impl NoPrimary {
    /// Checks whether a retry may find a primary, because some of the servers may only be starting.
    pub(crate) fn is_transient(&self) -> bool {
        self.reasons.iter().any(|reason| match reason.downcast_ref() {
            Some(SentinelError { kind: SentinelErrorKind::UnknownName, .. }) => false,
            _ => is_transient(&**reason),
        })
    }
}

impl fmt::Display for NoPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "primary `{}` not found", self.name)?;
        for reason in &self.reasons {
            for (depth, error) in error::sources(&**reason).enumerate() {
                let separator = if depth == 0 { "; " } else { ": " };
                write!(f, "{separator}{error}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for NoPrimary {}

/// A sentinel did not name a server.
#[derive(Debug)]
pub(super) struct SentinelError {
    pub(super) sentinel: String,
    pub(super) kind: SentinelErrorKind,
}

#[derive(Debug)]
pub(super) enum SentinelErrorKind {
    UnknownName,
    Failed(RedisError),
    TimedOut,
}

impl fmt::Display for SentinelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = match self.kind {
            SentinelErrorKind::UnknownName => "does not know this name",
            SentinelErrorKind::Failed(_) => "failed",
            SentinelErrorKind::TimedOut => "did not answer",
        };
        write!(f, "the sentinel at {} {problem}", self.sentinel)
    }
}

impl std::error::Error for SentinelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            SentinelErrorKind::Failed(error) => Some(error),
            SentinelErrorKind::UnknownName | SentinelErrorKind::TimedOut => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;

    #[test]
    fn missing_primary_shows_each_reason_with_its_sources() {
        let refused = (ErrorKind::Io, "connection refused").into();
        let reasons = [SentinelErrorKind::Failed(refused), SentinelErrorKind::UnknownName];
        let reasons = reasons.map(|kind| SentinelError { sentinel: "s:1".into(), kind }.into());
        let error = NoPrimary { name: "tower".into(), reasons: reasons.into() };
        assert_eq!(
            error.to_string(),
            "primary `tower` not found; \
             the sentinel at s:1 failed: connection refused - Io; \
             the sentinel at s:1 does not know this name"
        );
    }
}
