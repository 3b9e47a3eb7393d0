//! The variable part of an entry, after the header.

use std::borrow::Cow;
use std::fmt;

use ::bytes::Bytes;

use crate::limits::MAX_ERROR_BYTES;

/// The reply to duplicates, or the last error, as bytes with a kind.
///
/// A tail of unknown kind is carried along unchanged, because the scripts of a store move a tail
/// without inspecting it. It is neither a reply nor an error.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) kind: u8,
    pub(crate) bytes: Bytes,
}

impl Tail {
    const ERROR: u8 = 1;
    const REPLY: u8 = 2;

    pub(crate) const NONE: Self = Self { kind: 0, bytes: Bytes::new() };

    /// Creates the tail for a reply. An empty reply is a reply; `None` is no tail.
    pub(crate) fn from_reply(reply: Option<&Bytes>) -> Self {
        match reply {
            Some(reply) => Self { kind: Self::REPLY, bytes: reply.clone() },
            None => Self::NONE,
        }
    }

    /// Stores an error text. An empty text keeps the previous error.
    pub(crate) fn set_error(&mut self, text: &str) {
        if !text.is_empty() {
            *self = Self {
                kind: Self::ERROR,
                bytes: Bytes::copy_from_slice(truncate_error(text).as_bytes()),
            };
        }
    }

    /// Drops a reply and keeps an error. For an entry that is reopened: its next duplicate must not
    /// get the reply of the previous run.
    pub(crate) fn keep_error_only(&mut self) {
        if self.kind != Self::ERROR {
            *self = Self::NONE;
        }
    }

    pub(crate) fn reply(&self) -> Option<&Bytes> {
        (self.kind == Self::REPLY).then_some(&self.bytes)
    }

    pub(crate) fn error(&self) -> Option<Cow<'_, str>> {
        (self.kind == Self::ERROR).then(|| String::from_utf8_lossy(&self.bytes))
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            0 => "none",
            Self::ERROR => "error",
            Self::REPLY => "reply",
            _ => "unknown kind",
        };
        write!(f, "Tail({kind}, {} bytes)", self.bytes.len())
    }
}

pub(crate) fn truncate_error(text: &str) -> &str {
    let mut end = text.len().min(MAX_ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
