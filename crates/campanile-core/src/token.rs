//! The numbers that tell one grant of a lock from another.

use std::fmt;
use std::num::NonZeroU64;

/// The fencing token of a grant: rises with each grant of the same key.
///
/// Give it to whatever the handler writes to, and let that refuse a smaller one **in what belongs to
/// this key alone**: a row for each payment, not for each account. Tokens of different keys say
/// nothing about each other, and can be equal. It is the receiver that closes the window which no
/// lock can close.
///
/// A token is below 2^53, so that every client and script reads it exactly, as a double too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The first number that is no token.
    pub(crate) const LIMIT: u64 = 1 << 53;

    /// The smallest token; as a floor it means "none seen yet".
    pub const ZERO: Self = Self(0);

    /// The token of this value, or `None` from 2^53 on.
    pub const fn new(value: u64) -> Option<Self> {
        if value < Self::LIMIT { Some(Self(value)) } else { None }
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The nonce of one acquisition: 64 random bits, drawn by the client and used again when it repeats
/// the command.
///
/// Zero is no nonce; an entry that was reopened by an operator belongs to nobody and has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(NonZeroU64);

impl Owner {
    /// The nonce of these bits, or `None` for zero.
    pub const fn new(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// The bits.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// What a command names to prove that the lock is its own: token *and* nonce.
///
/// Both, because after a failover to a slower clock two grants can carry one token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// The fencing token that the store gave.
    pub token: FencingToken,
    /// The nonce that the client drew.
    pub owner: Owner,
}
