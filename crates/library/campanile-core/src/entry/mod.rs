//! The entry that a store keeps for a key.

mod bytes;
mod details;
mod micros;
mod steps;
mod tail;

use std::borrow::Cow;
use std::time::SystemTime;

use ::bytes::Bytes;

use crate::{FencingToken, Fingerprint, Grant, Owner};

pub use self::bytes::Unreadable;
pub use self::details::{Details, DetailsBuilder};
pub(crate) use self::micros::Micros;
pub use self::steps::Steps;
pub(crate) use self::tail::Tail;

/// The state of an entry. Absence is not a state: there is no entry then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// A grant holds, or held, the lock.
    Processing,
    /// The last attempt failed or was released; the next one may start
    /// [at](Entry::at) a later time.
    Retrying,
    /// Done. Later duplicates are answered from the entry.
    Completed,
    /// Given up. No further attempt is made.
    Failed,
}

/// The entry that a store keeps for a key. Only [`step`](crate::step()) changes it, and stores keep
/// it in the encoding of [`to_bytes`](Self::to_bytes).
///
/// `Debug` prints only the lengths of the steps, the details, the reply and the error, because they come
/// from the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub(crate) state: State,
    pub(crate) giving_up: bool,
    pub(crate) permanent_failure: bool,
    pub(crate) released: bool,
    pub(crate) attempt: u16,
    pub(crate) interrupts: u8,
    pub(crate) give_ups: u8,
    /// Unused. Carried along so that a later version may use it.
    pub(crate) spare: u8,
    pub(crate) token: FencingToken,
    pub(crate) owner: Option<Owner>,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// In seconds since 1970.
    pub(crate) created: u32,
    pub(crate) at: Micros,
    pub(crate) steps: Option<Steps>,
    pub(crate) details: Option<Details>,
    pub(crate) tail: Tail,
}

impl Entry {
    /// Creates the entry for a first grant or for a completion without an entry. All counters are
    /// zero.
    pub(crate) const fn new(state: State, now: Micros) -> Self {
        Self {
            state,
            giving_up: false,
            permanent_failure: false,
            released: false,
            attempt: 0,
            interrupts: 0,
            give_ups: 0,
            spare: 0,
            token: FencingToken::ZERO,
            owner: None,
            fingerprint: None,
            created: now.whole_seconds(),
            at: now,
            steps: None,
            details: None,
            tail: Tail::NONE,
        }
    }

    /// Returns the state of the key.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the number of counted attempts. Saturates at
    /// [`MAX_ATTEMPTS`](crate::limits::MAX_ATTEMPTS).
    pub const fn attempt(&self) -> u16 {
        self.attempt
    }

    /// Returns the number of attempts that were not counted although the handler had started.
    pub const fn interrupts(&self) -> u8 {
        self.interrupts
    }

    /// Returns the number of give-up locks granted. Saturates at 255.
    pub const fn give_ups(&self) -> u8 {
        self.give_ups
    }

    /// Checks whether the lock is a give-up lock, under which the dead letter is published and the
    /// handler must not run.
    pub const fn is_give_up(&self) -> bool {
        self.giving_up
    }

    /// Checks whether the next grant is a give-up lock, however many attempts are left.
    pub const fn has_permanent_failure(&self) -> bool {
        self.permanent_failure
    }

    /// Checks whether the last grant was released, and not failed.
    pub const fn is_released(&self) -> bool {
        self.released
    }

    /// Returns the fencing token of the last grant.
    pub const fn token(&self) -> FencingToken {
        self.token
    }

    /// Returns the nonce of the last grant, or `None` after an operator reopened the entry.
    pub const fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// Returns the fingerprint of the payload for which the key was used, if payloads are compared.
    pub const fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// Returns when the entry was created, in whole seconds.
    pub fn created(&self) -> SystemTime {
        Micros::from_seconds(self.created).to_system_time()
    }

    /// Returns when the lock expires (PROCESSING), when the next attempt is due (RETRYING), or when
    /// the key was settled (COMPLETED, FAILED). Stored times after the year 20 000 saturate.
    pub fn at(&self) -> SystemTime {
        self.at.to_system_time()
    }

    /// Returns the details of a grant, if they were kept. They are those of the last one if their
    /// [owner](Details::owner) is that of the entry.
    pub const fn details(&self) -> Option<&Details> {
        self.details.as_ref()
    }

    /// Returns the recorded steps of the handler, if there are any.
    pub const fn steps(&self) -> Option<&Steps> {
        self.steps.as_ref()
    }

    /// Returns the reply to later duplicates, if one was kept.
    pub fn reply(&self) -> Option<&Bytes> {
        self.tail.reply()
    }

    /// Returns the text of the last error, if one was kept. Invalid UTF-8 is replaced.
    pub fn error(&self) -> Option<Cow<'_, str>> {
        self.tail.error()
    }

    /// Cuts an error text to the prefix that an entry keeps: at most
    /// [`MAX_ERROR_BYTES`](crate::limits::MAX_ERROR_BYTES), up to a character boundary.
    ///
    /// [`step`](crate::step()) truncates with this function. A store that does not run `step` calls
    /// it before it sends the text.
    pub fn kept_error(text: &str) -> &str {
        tail::truncate_error(text)
    }

    /// Returns the byte of a COMPLETED entry that says what follows the header. For a store that does
    /// not run [`step`](crate::step()), and encodes the entry itself.
    pub const fn completed_tail_kind(has_details: bool, has_reply: bool) -> u8 {
        tail::completed_kind(has_details, has_reply)
    }

    /// Checks whether this grant is the last one of the entry. An expired lock that no other owner
    /// has taken still belongs to its grant.
    pub(crate) fn belongs_to(&self, grant: Grant) -> bool {
        self.token == grant.token && self.owner == Some(grant.owner)
    }

    /// Replaces the details. A grant without details keeps them, because the tail of an entry is moved
    /// as it is.
    pub(crate) fn set_details(&mut self, details: Option<&Details>) {
        if let Some(details) = details
            && self.tail.is_known()
        {
            self.details = Some(details.clone());
            if self.tail.error().is_none() && self.tail.reply().is_none() {
                self.tail = Tail::NONE;
            }
        }
    }

    /// Enters a state with this `at`. Clears the `giving_up` and `released` flags, which belong to the
    /// previous state, and keeps `permanent_failure`.
    pub(crate) fn enter_state(&mut self, state: State, at: Micros) {
        self.state = state;
        self.at = at;
        self.giving_up = false;
        self.released = false;
    }
}
