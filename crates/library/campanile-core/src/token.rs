//! The numbers that distinguish the grants of a lock.

use std::fmt;
use std::num::NonZeroU64;

/// The fencing token of a grant, which increases with each grant of the same key.
///
/// Pass the token to the system that the handler writes to, and let that system reject smaller
/// tokens **in data that belongs to this key alone**: in a row per payment, not in a row per
/// account. Tokens of different keys are unrelated and can be equal. Only the receiver can close
/// the window that every lock leaves open.
///
/// A token is below 2^53, so that every client and script represents it exactly, even as a double.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The first value that is not a token.
    pub(crate) const LIMIT: u64 = 1 << 53;

    /// The smallest token. As a floor it means "none seen yet".
    pub const ZERO: Self = Self(0);

    /// Creates a token, or `None` if the value is 2^53 or greater.
    pub const fn new(value: u64) -> Option<Self> {
        if value < Self::LIMIT { Some(Self(value)) } else { None }
    }

    /// Converts the token to an integer.
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

/// The nonce of one acquisition: 64 random bits, drawn by the client and reused when it repeats the
/// command.
///
/// Zero is not a nonce. An entry that was reopened by an operator has no owner and no nonce.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(NonZeroU64);

impl Owner {
    /// Creates a nonce, or `None` for zero.
    pub const fn new(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// Returns the bits of the nonce.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// The token *and* nonce by which a command proves that it holds the lock.
///
/// Both are needed, because two grants can have the same token after a failover to a slower clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// The fencing token assigned by the store.
    pub token: FencingToken,
    /// The nonce drawn by the client.
    pub owner: Owner,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_below_the_limit_and_displays_its_number() {
        assert_eq!(FencingToken::new(FencingToken::LIMIT), None);
        let last = FencingToken::new((1 << 53) - 1).unwrap();
        assert_eq!((last.get(), last.to_string()), ((1 << 53) - 1, "9007199254740991".to_owned()));
    }

    #[test]
    fn zero_is_no_nonce() {
        assert_eq!(Owner::new(0), None);
        assert_eq!(Owner::new(7).map(Owner::get), Some(7));
    }
}
