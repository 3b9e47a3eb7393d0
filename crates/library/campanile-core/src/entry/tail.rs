//! The variable part of an entry, after the header.

use std::borrow::Cow;
use std::fmt;

use ::bytes::Bytes;

use super::{Details, Steps};
use crate::limits::MAX_ERROR_BYTES;

/// The reply to duplicates, or the last error, as bytes with a kind. The steps and the details of the
/// grant, which are stored before it, are not part of it.
///
/// A tail of unknown kind is carried along unchanged, because the scripts of a store move a tail
/// without inspecting it. It is neither a reply nor an error.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) kind: u8,
    pub(crate) bytes: Bytes,
}

impl Tail {
    const EMPTY: u8 = 0;
    const ERROR: u8 = 1;
    const REPLY: u8 = 2;
    /// Details, then the error.
    const DETAILS_AND_ERROR: u8 = 3;
    /// Details, then the reply.
    const DETAILS_AND_REPLY: u8 = 4;

    /// Steps, then the kind and the bytes of another tail.
    pub(super) const STEPS_AND_TAIL: u8 = 5;

    pub(crate) const NONE: Self = Self { kind: Self::EMPTY, bytes: Bytes::new() };

    /// Splits what is stored after the header into the steps and what is stored after them. Steps that
    /// cannot be read make it a tail of an unknown kind.
    pub(super) fn split_steps(kind: u8, bytes: &[u8]) -> (Option<Steps>, u8, &[u8]) {
        let split = || {
            let (len, rest) = bytes.split_first_chunk()?;
            let (steps, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
            let (kind, rest) = rest.split_first()?;
            (!steps.is_empty()).then(|| (Some(Steps::from_bytes(steps)), *kind, rest))
        };
        let steps = (kind == Self::STEPS_AND_TAIL).then(split).flatten();
        steps.unwrap_or((None, kind, bytes))
    }

    /// Splits what is stored after the steps into the details and the tail. Details that cannot be read
    /// make it a tail of an unknown kind.
    pub(super) fn decode(kind: u8, bytes: &[u8]) -> (Option<Details>, Self) {
        let split = || {
            let (len, rest) = bytes.split_first_chunk()?;
            rest.split_at_checked(u16::from_be_bytes(*len).into())
        };
        let tail = |kind, bytes| Self { kind, bytes: Bytes::copy_from_slice(bytes) };
        match (kind, split()) {
            (Self::DETAILS_AND_ERROR, Some((details, b""))) => {
                (Some(Details::from_bytes(details)), Self::NONE)
            }
            (Self::DETAILS_AND_ERROR, Some((details, error))) => {
                (Some(Details::from_bytes(details)), tail(Self::ERROR, error))
            }
            (Self::DETAILS_AND_REPLY, Some((details, reply))) => {
                (Some(Details::from_bytes(details)), tail(Self::REPLY, reply))
            }
            _ => (None, tail(kind, bytes)),
        }
    }

    /// The kind under which the tail is stored.
    pub(super) const fn stored_kind(&self, has_details: bool) -> u8 {
        match (has_details, self.kind) {
            (false, kind) => kind,
            (true, Self::REPLY) => Self::DETAILS_AND_REPLY,
            (true, _) => Self::DETAILS_AND_ERROR,
        }
    }

    /// Checks whether details can be stored before the tail. They cannot before one of an unknown
    /// kind, which is kept as it is.
    pub(super) const fn is_known(&self) -> bool {
        self.kind <= Self::REPLY
    }

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

    /// An empty text is no error.
    pub(crate) fn error(&self) -> Option<Cow<'_, str>> {
        (self.kind == Self::ERROR && !self.bytes.is_empty())
            .then(|| String::from_utf8_lossy(&self.bytes))
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Self::EMPTY => "none",
            Self::ERROR => "error",
            Self::REPLY => "reply",
            _ => "unknown kind",
        };
        write!(f, "Tail({kind}, {} bytes)", self.bytes.len())
    }
}

/// The kind under which a COMPLETED entry stores its reply, if there is one.
pub(super) const fn completed_kind(has_details: bool, has_reply: bool) -> u8 {
    match (has_details, has_reply) {
        (false, false) => Tail::EMPTY,
        (false, true) => Tail::REPLY,
        (true, false) => Tail::DETAILS_AND_ERROR,
        (true, true) => Tail::DETAILS_AND_REPLY,
    }
}

pub(crate) fn truncate_error(text: &str) -> &str {
    truncate(text, MAX_ERROR_BYTES)
}

/// Cuts a text to at most this many bytes, up to a character boundary.
pub(super) fn truncate(text: &str, max_bytes: usize) -> &str {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
