//! Errors of the search for a primary.

use std::fmt;

use campanile_core::{BoxError, error};
use redis::RedisError;

use crate::error::may_pass;

/// No server was found that is the primary.
#[derive(Debug)]
pub(crate) struct NoPrimary {
    pub(super) name: Box<str>,
    pub(super) reasons: Vec<BoxError>,
}

impl NoPrimary {
    /// Checks whether a retry may find a primary, because some of the servers may only be starting.
    pub(crate) fn may_pass(&self) -> bool {
        self.reasons.iter().any(|reason| match reason.downcast_ref() {
            Some(NotTold { why: Why::UnknownName, .. }) => false,
            _ => may_pass(&**reason),
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
pub(super) struct NotTold {
    pub(super) sentinel: String,
    pub(super) why: Why,
}

#[derive(Debug)]
pub(super) enum Why {
    UnknownName,
    Failed(RedisError),
    Silent,
}

impl fmt::Display for NotTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Why::UnknownName => "does not know this name",
            Why::Failed(_) => "failed",
            Why::Silent => "did not answer",
        };
        write!(f, "the sentinel at {} {why}", self.sentinel)
    }
}

impl std::error::Error for NotTold {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            Why::Failed(error) => Some(error),
            Why::UnknownName | Why::Silent => None,
        }
    }
}
