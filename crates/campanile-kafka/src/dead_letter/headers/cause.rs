//! Why a record died, as its error tells.

use std::error::Error;
use std::fmt::{self, Write};

use campanile_core::{DecodeError, IdempotencyKey, error};
use campanile_idempotency::IdempotencyError;

use crate::error::write_text;

/// The longest message: a line of a list.
pub(super) const MESSAGE: usize = 1024;

/// The longest trace.
pub(super) const TRACE: usize = 4096;

/// Why a record died. It is small and owns what it has, so that the error need not be kept until the
/// letter is published.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(super) kind: Kind,
    pub(super) key: Option<IdempotencyKey>,
    /// How many there were, if the record was ever tried under a lock.
    pub(super) attempts: Option<u32>,
    /// How many burials were begun and not let go in order, this one included.
    pub(super) burials: Option<u32>,
    /// The error and its sources in one line.
    pub(super) message: String,
    /// The error and its sources, a line each.
    pub(super) trace: String,
}

impl Cause {
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        let mut cause = Self {
            kind: Kind::Error,
            key: None,
            attempts: None,
            burials: None,
            message: joined(error, MESSAGE, ": "),
            trace: String::new(),
        };
        match IdempotencyError::find(error) {
            Some(IdempotencyError::Failed(failed)) => {
                cause.kind = Kind::Failed;
                cause.key = Some(failed.key.clone());
                cause.attempts = Some(failed.attempt);
                cause.burials = Some(0);
            }
            Some(IdempotencyError::Exhausted(exhausted)) => {
                cause.kind = Kind::Exhausted;
                cause.key = Some(exhausted.key.clone());
                cause.attempts = Some(exhausted.attempts);
                cause.burials = Some(exhausted.burials);
            }
            Some(IdempotencyError::Mismatch { key }) => {
                cause.kind = Kind::Mismatch;
                cause.key = Some(key.clone());
            }
            Some(IdempotencyError::MissingKey) => cause.kind = Kind::MissingKey,
            Some(IdempotencyError::InvalidKey(_)) => cause.kind = Kind::InvalidKey,
            _ if error::find::<DecodeError>(error).is_some() => cause.kind = Kind::DecodeError,
            _ => {}
        }
        let first = format!("campanile.{}: ", cause.kind.name());
        cause.trace = first.clone() + &joined(error, TRACE - first.len(), "\nCaused by: ");
        cause
    }
}

/// How a record dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An attempt failed, and there is no other.
    Failed,
    /// No attempt was left.
    Exhausted,
    MissingKey,
    InvalidKey,
    /// The key was used for another payload.
    Mismatch,
    DecodeError,
    /// An error that is not of Campanile's layers.
    Error,
}

impl Kind {
    /// As the name of a class.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Failed => "Failed",
            Self::Exhausted => "Exhausted",
            Self::MissingKey => "MissingKey",
            Self::InvalidKey => "InvalidKey",
            Self::Mismatch => "Mismatch",
            Self::DecodeError => "DecodeError",
            Self::Error => "Error",
        }
    }

    /// The layer whose error it is.
    pub(super) fn place(self) -> &'static str {
        match self {
            Self::DecodeError => "DecodeLayer",
            Self::Error => "Consumer",
            _ => "IdempotencyLayer",
        }
    }
}

/// The error and its sources with this in between, at most so many bytes. Whatever a `Display`
/// writes beyond is not kept anywhere.
fn joined(error: &(dyn Error + 'static), limit: usize, between: &str) -> String {
    let mut text = Bounded { text: String::new(), limit, is_full: false };
    let mut before = "";
    for error in error::sources(error) {
        let _ = text.write_str(before);
        write_text(&mut text, error);
        before = between;
    }
    text.text
}

/// A text of so many bytes at most, which ends with `…` if there was more.
struct Bounded {
    text: String,
    limit: usize,
    is_full: bool,
}

impl Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        const MORE: &str = "…";
        if self.is_full {
            return Err(fmt::Error);
        }
        if self.text.len() + part.len() <= self.limit {
            self.text.push_str(part);
            return Ok(());
        }
        let room = self.limit - MORE.len();
        if self.text.len() > room {
            self.text.truncate(boundary(&self.text, room));
        } else {
            self.text.push_str(&part[..boundary(part, room - self.text.len())]);
        }
        self.text.push_str(MORE);
        self.is_full = true;
        Err(fmt::Error)
    }
}

/// The end of the last whole character within so many bytes.
fn boundary(text: &str, bytes: usize) -> usize {
    (0..=bytes).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}
