//! What a store keeps for a key.

mod bytes;
mod micros;
mod tail;

use std::borrow::Cow;
use std::time::SystemTime;

use ::bytes::Bytes;

use crate::{FencingToken, Fingerprint, Grant, Owner};

pub use self::bytes::Unreadable;
pub(crate) use self::micros::Micros;
pub(crate) use self::tail::Tail;

/// The state of an entry. Absent is no state: there is no entry then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// A grant holds, or held, the lock.
    Processing,
    /// The last attempt failed or was given up; the next may come at `retry_at`.
    Retrying,
    /// Done; later duplicates are answered from the entry.
    Completed,
    /// Given up for good.
    Failed,
}

/// What a store keeps for a key: changed by [`step`](crate::step()) alone, and stored as the bytes
/// that [`to_bytes`](Self::to_bytes) gives.
///
/// `Debug` shows neither the reply nor the error, only how long they are: both come from the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub(crate) state: State,
    pub(crate) burial: bool,
    pub(crate) doomed: bool,
    pub(crate) released: bool,
    pub(crate) attempt: u16,
    pub(crate) interrupts: u8,
    pub(crate) burials: u8,
    /// Means nothing yet; carried along, so that a later version may use it.
    pub(crate) spare: u8,
    pub(crate) token: FencingToken,
    pub(crate) owner: Option<Owner>,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// In seconds since 1970.
    pub(crate) created: u32,
    pub(crate) at: Micros,
    pub(crate) tail: Tail,
}

impl Entry {
    /// The entry that a first grant or an adopted completion begins with: nothing is counted yet.
    pub(crate) const fn new(state: State, now: Micros) -> Self {
        Self {
            state,
            burial: false,
            doomed: false,
            released: false,
            attempt: 0,
            interrupts: 0,
            burials: 0,
            spare: 0,
            token: FencingToken::ZERO,
            owner: None,
            fingerprint: None,
            created: now.whole_seconds(),
            at: now,
            tail: Tail::NONE,
        }
    }

    /// Where the key stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// How many attempts are counted; stops at [`MAX_ATTEMPTS`](crate::limits::MAX_ATTEMPTS).
    pub const fn attempt(&self) -> u16 {
        self.attempt
    }

    /// How many attempts were handed back although the handler had begun.
    pub const fn interrupts(&self) -> u8 {
        self.interrupts
    }

    /// How many burial locks were granted; stops at 255.
    pub const fn burials(&self) -> u8 {
        self.burials
    }

    /// Whether the lock is one to publish the dead letter under, not to run the handler.
    pub const fn is_burial(&self) -> bool {
        self.burial
    }

    /// Whether the next grant is a burial lock, whatever the attempts.
    pub const fn is_doomed(&self) -> bool {
        self.doomed
    }

    /// Whether the last grant was given up, not failed.
    pub const fn is_released(&self) -> bool {
        self.released
    }

    /// The fencing token of the last grant.
    pub const fn token(&self) -> FencingToken {
        self.token
    }

    /// The nonce of the last grant; `None` once an operator reopened the entry.
    pub const fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// Which payload the key was used for, if that is compared.
    pub const fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// When the entry came to be, in whole seconds.
    pub fn created(&self) -> SystemTime {
        Micros::from_seconds(self.created).to_system_time()
    }

    /// When the lock ends (PROCESSING), the next attempt is due (RETRYING), or the key was settled
    /// (COMPLETED, FAILED). A stored time past the year 20 000 is shown as that.
    pub fn at(&self) -> SystemTime {
        self.at.to_system_time()
    }

    /// The reply that later duplicates are answered with, if one was kept.
    pub fn reply(&self) -> Option<&Bytes> {
        self.tail.reply()
    }

    /// The text of the last error, if one was kept; what is not UTF-8 in it is replaced.
    pub fn error(&self) -> Option<Cow<'_, str>> {
        self.tail.error()
    }

    /// As much of an error's text as an entry keeps: at most
    /// [`MAX_ERROR_BYTES`](crate::limits::MAX_ERROR_BYTES), and no half character.
    ///
    /// [`step`](crate::step()) cuts with it; a store that does not run `step` does so before it sends.
    pub fn kept_error(text: &str) -> &str {
        tail::kept_error(text)
    }

    /// Whether this grant is the last that the entry saw. An expired lock that nobody took still
    /// belongs to its grant.
    pub(crate) fn is_of(&self, grant: Grant) -> bool {
        self.token == grant.token && self.owner == Some(grant.owner)
    }

    /// Enters a state, as of now or later. What belonged to the one before ends with it: the burial
    /// lock and the release; what the entry is doomed to stays.
    pub(crate) fn enter(&mut self, state: State, at: Micros) {
        self.state = state;
        self.at = at;
        self.burial = false;
        self.released = false;
    }
}
