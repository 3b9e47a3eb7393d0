//! The binary form of an entry: a big-endian header of 44 bytes, then the tail.
//!
//! ```text
//! 0 version 0xC1 · 1 state (bits 0–2) | giving_up 8 | permanent_failure 16 | released 32 · 2–3 attempt
//! 4 interrupts · 5 give_ups · 6 kind of tail · 7 spare · 8–15 token · 16–23 owner
//! 24–31 fingerprint · 32–35 created (s) · 36–43 at (µs) · 44… tail
//! ```
//!
//! The kinds of tail are: 0 none, 1 an error in UTF-8, 2 a reply, 3 details and an error, 4 details and
//! a reply, 5 steps and another tail. The details are preceded by their length in two bytes; an empty
//! error after them is none. The steps are preceded by their length in four bytes, and followed by the
//! kind of the other tail.
//!
//! 44 bytes are what Redis embeds in one allocation. Scripts read and splice the same bytes. Both
//! sides therefore reject exactly the same values, and every value accepted here is written back
//! unchanged.

use std::error::Error;
use std::fmt;

use ::bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Details, Entry, Micros, State, Steps, Tail};
use crate::{FencingToken, Fingerprint, Owner};

const HEADER_LEN: usize = 44;
const STEPS_PREFIX_LEN: usize = 5;
const DETAILS_PREFIX_LEN: usize = 2;
const VERSION: u8 = 0xC1;

const STATE_MASK: u8 = 7;
const GIVING_UP: u8 = 8;
const PERMANENT_FAILURE: u8 = 16;
const RELEASED: u8 = 32;
const UNKNOWN_FLAGS: u8 = 64 | 128;

impl Entry {
    /// Encodes the entry as stores keep it.
    pub fn to_bytes(&self) -> Bytes {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let steps = self.steps.as_ref().map(Steps::as_bytes);
        let steps_len = steps.map_or(0, |steps| STEPS_PREFIX_LEN + steps.len());
        let details = self.details.as_ref().map(Details::as_bytes);
        let details_len = details.map_or(0, |details| DETAILS_PREFIX_LEN + details.len());
        let len = HEADER_LEN + steps_len + details_len + self.tail.bytes.len();
        let kind = self.tail.stored_kind(details.is_some());
        let mut bytes = BytesMut::with_capacity(len);
        bytes.put_u8(VERSION);
        bytes.put_u8(
            self.state.to_bits()
                | flag(self.giving_up, GIVING_UP)
                | flag(self.permanent_failure, PERMANENT_FAILURE)
                | flag(self.released, RELEASED),
        );
        bytes.put_u16(self.attempt);
        bytes.put_u8(self.interrupts);
        bytes.put_u8(self.give_ups);
        bytes.put_u8(if steps.is_some() { Tail::STEPS_AND_TAIL } else { kind });
        bytes.put_u8(self.spare);
        bytes.put_u64(self.token.get());
        bytes.put_u64(self.owner.map_or(0, Owner::get));
        bytes.put_u64(self.fingerprint.map_or(0, Fingerprint::to_bits));
        bytes.put_u32(self.created);
        bytes.put_u64(self.at.0);
        if let Some(steps) = steps {
            bytes.put_u32(steps.len() as u32);
            bytes.put_slice(steps);
            bytes.put_u8(kind);
        }
        if let Some(details) = details {
            bytes.put_u16(details.len() as u16);
            bytes.put_slice(details);
        }
        bytes.put_slice(&self.tail.bytes);
        bytes.freeze()
    }

    /// Decodes an entry. [`to_bytes`](Self::to_bytes) encodes it to the same bytes again.
    ///
    /// # Errors
    ///
    /// Fails with [`Unreadable`] for bytes that no known version of Campanile has written. A store
    /// replies [`Corrupt`](crate::Reply::Corrupt) and leaves the value unchanged; it never treats
    /// the entry as absent.
    pub fn from_bytes(mut bytes: &[u8]) -> Result<Self, Unreadable> {
        if bytes.len() < HEADER_LEN {
            return Err(Unreadable::Short { length: bytes.len() });
        }
        let version = bytes.get_u8();
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let flags = bytes.get_u8();
        if flags & UNKNOWN_FLAGS != 0 {
            return Err(Unreadable::Flags(flags & UNKNOWN_FLAGS));
        }
        let state = State::from_bits(flags & STATE_MASK)?;
        let attempt = bytes.get_u16();
        let interrupts = bytes.get_u8();
        let give_ups = bytes.get_u8();
        let kind = bytes.get_u8();
        let spare = bytes.get_u8();
        let token = FencingToken::new(bytes.get_u64()).ok_or(Unreadable::Token)?;
        let owner = Owner::new(bytes.get_u64());
        let fingerprint = Fingerprint::from_bits(bytes.get_u64());
        let created = bytes.get_u32();
        let at = Micros(bytes.get_u64());
        let (steps, kind, bytes) = Tail::split_steps(kind, bytes);
        let (details, tail) = Tail::decode(kind, bytes);
        Ok(Self {
            state,
            giving_up: flags & GIVING_UP != 0,
            permanent_failure: flags & PERMANENT_FAILURE != 0,
            released: flags & RELEASED != 0,
            attempt,
            interrupts,
            give_ups,
            spare,
            token,
            owner,
            fingerprint,
            created,
            at,
            steps,
            details,
            tail,
        })
    }
}

impl State {
    const fn to_bits(self) -> u8 {
        match self {
            Self::Processing => 1,
            Self::Retrying => 2,
            Self::Completed => 3,
            Self::Failed => 4,
        }
    }

    const fn from_bits(bits: u8) -> Result<Self, Unreadable> {
        match bits {
            1 => Ok(Self::Processing),
            2 => Ok(Self::Retrying),
            3 => Ok(Self::Completed),
            4 => Ok(Self::Failed),
            other => Err(Unreadable::State(other)),
        }
    }
}

/// The reason why a stored value is not an entry. It contains none of the entry's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unreadable {
    /// The value is shorter than a header.
    Short {
        /// The length of the value, in bytes.
        length: usize,
    },
    /// The first byte is that of another version, or the value is not an entry at all.
    Version(u8),
    /// The state is unknown to this version.
    State(u8),
    /// Some flags are unknown to this version.
    Flags(u8),
    /// The token is 2^53 or greater.
    Token,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { length } => {
                write!(
                    f,
                    "unreadable entry: {length} bytes, shorter than the header of {HEADER_LEN}"
                )
            }
            Self::Version(byte) => {
                write!(f, "unreadable entry: first byte is {byte:#04x}, expected {VERSION:#04x}")
            }
            Self::State(bits) => write!(f, "unreadable entry: unknown state {bits}"),
            Self::Flags(bits) => write!(f, "unreadable entry: unknown flags {bits:#04x}"),
            Self::Token => write!(f, "unreadable entry: the token is 2^53 or greater"),
        }
    }
}

impl Error for Unreadable {}
