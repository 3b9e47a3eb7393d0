//! complete: record the success.

use bytes::Bytes;

use super::{held_by, owned_by};
use crate::entry::{Entry, Micros, State, Tail};
use crate::{Details, Fingerprint, Grant, Reply};

/// The fields of the command.
pub(super) struct Complete<'a> {
    pub(super) grant: Grant,
    pub(super) attempt: u16,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) reply: Option<&'a Bytes>,
    pub(super) details: Option<&'a Details>,
}

impl Complete<'_> {
    pub(super) fn apply(&self, entry: &mut Option<Entry>, now: Micros) {
        if let Some(entry) = held_by(entry, self.grant) {
            entry.enter_state(State::Completed, now);
            entry.permanent_failure = false;
            entry.steps = None;
            entry.details = self.details.cloned();
            entry.tail = Tail::from_reply(self.reply);
        } else if entry.is_none() {
            *entry = Some(self.recreate_entry(now));
        }
    }

    pub(super) fn reply(&self, after: Option<&Entry>) -> Reply {
        match owned_by(after, self.grant) {
            None => Reply::Lost,
            Some(entry) if entry.state == State::Completed => Reply::Completed,
            Some(entry) => Reply::Settled(entry.state),
        }
    }

    /// Creates the entry again after it was lost, to a failover or to its retention, while the
    /// handler ran. As far as the store knows, no other owner was granted the key since, so the
    /// result is kept.
    fn recreate_entry(&self, now: Micros) -> Entry {
        Entry {
            attempt: self.attempt,
            token: self.grant.token,
            owner: Some(self.grant.owner),
            fingerprint: self.fingerprint,
            details: self.details.cloned(),
            tail: Tail::from_reply(self.reply),
            ..Entry::new(State::Completed, now)
        }
    }
}
