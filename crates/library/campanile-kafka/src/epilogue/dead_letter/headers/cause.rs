//! The cause of a dead letter, taken from the record's error.

use std::error::Error;
use std::fmt::{self, Write};

use campanile_core::{DecodeError, IdempotencyKey, error};
use campanile_idempotency::IdempotencyError;

use campanile_driver::private::write_text;

/// The longest message in bytes. Tools show it as one line of a list.
pub(super) const MAX_MESSAGE: usize = 1024;

/// The longest trace in bytes.
pub(super) const MAX_TRACE: usize = 4096;

/// Why a record was given up. A cause is small and owns its data, so that the error need not be
/// kept until the letter is published.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(super) kind: CauseKind,
    pub(super) key: Option<IdempotencyKey>,
    /// The number of attempts, if the record was ever tried under a lock.
    pub(super) attempts: Option<u32>,
    /// The number of give-ups, this one included, without those that ended cleanly.
    pub(super) give_ups: Option<u32>,
    /// The error and its sources on one line.
    pub(super) message: String,
    /// The error and its sources, one per line.
    pub(super) trace: String,
}

impl Cause {
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        let mut cause = Self {
            kind: CauseKind::Error,
            key: None,
            attempts: None,
            give_ups: None,
            message: join_sources(error, MAX_MESSAGE, ": "),
            trace: String::new(),
        };
        match IdempotencyError::find(error) {
            Some(IdempotencyError::AttemptFailed(failed)) => {
                cause.kind = CauseKind::AttemptFailed;
                cause.key = Some(failed.key.clone());
                cause.attempts = Some(failed.attempt);
                cause.give_ups = Some(0);
            }
            Some(IdempotencyError::Exhausted(exhausted)) => {
                cause.kind = CauseKind::Exhausted;
                cause.key = Some(exhausted.key.clone());
                cause.attempts = Some(exhausted.attempts);
                cause.give_ups = Some(exhausted.give_ups);
            }
            Some(IdempotencyError::Mismatch { key }) => {
                cause.kind = CauseKind::Mismatch;
                cause.key = Some(key.clone());
            }
            Some(IdempotencyError::MissingKey) => cause.kind = CauseKind::MissingKey,
            Some(IdempotencyError::InvalidKey(_)) => cause.kind = CauseKind::InvalidKey,
            _ if error::find::<DecodeError>(error).is_some() => cause.kind = CauseKind::DecodeError,
            _ => {}
        }
        let first = format!("campanile.{}: ", cause.kind.name());
        cause.trace =
            first.clone() + &join_sources(error, MAX_TRACE - first.len(), "\nCaused by: ");
        cause
    }
}

/// The kind of failure for which a record was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CauseKind {
    /// An attempt failed, and no further attempt is allowed.
    AttemptFailed,
    /// No attempt was left.
    Exhausted,
    MissingKey,
    InvalidKey,
    /// The key was used for another payload.
    Mismatch,
    DecodeError,
    /// The error does not come from Campanile's layers.
    Error,
}

impl CauseKind {
    /// Formats the kind as a class name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AttemptFailed => "AttemptFailed",
            Self::Exhausted => "Exhausted",
            Self::MissingKey => "MissingKey",
            Self::InvalidKey => "InvalidKey",
            Self::Mismatch => "Mismatch",
            Self::DecodeError => "DecodeError",
            Self::Error => "Error",
        }
    }
}

/// Joins the texts of the error and its sources with `separator`, up to `limit` bytes. Anything that
/// a `Display` writes beyond the limit is discarded.
fn join_sources(error: &(dyn Error + 'static), limit: usize, separator: &str) -> String {
    let mut text = BoundedText { text: String::new(), limit, is_full: false };
    let mut prefix = "";
    for error in error::sources(error) {
        let _ = text.write_str(prefix);
        write_text(&mut text, error);
        prefix = separator;
    }
    text.text
}

/// A text of at most `limit` bytes, which ends with `…` if it was cut.
struct BoundedText {
    text: String,
    limit: usize,
    is_full: bool,
}

impl Write for BoundedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        const ELLIPSIS: &str = "…";
        if self.is_full {
            return Err(fmt::Error);
        }
        if self.text.len() + part.len() <= self.limit {
            self.text.push_str(part);
            return Ok(());
        }
        let room = self.limit - ELLIPSIS.len();
        if self.text.len() > room {
            self.text.truncate(char_boundary(&self.text, room));
        } else {
            self.text.push_str(&part[..char_boundary(part, room - self.text.len())]);
        }
        self.text.push_str(ELLIPSIS);
        self.is_full = true;
        Err(fmt::Error)
    }
}

/// The end of the last whole character within the first `bytes` bytes.
fn char_boundary(text: &str, bytes: usize) -> usize {
    (0..=bytes).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}
