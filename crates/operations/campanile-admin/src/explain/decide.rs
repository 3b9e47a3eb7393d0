//! Finds the cause from what is known. Performs no I/O.

use std::time::{Duration, SystemTime};

use campanile_core::{Details, Entry, Record, State, Timestamp};
use campanile_idempotency::Found;

use super::{Cause, GroupReport};
use crate::entries::{EntryReport, is_reopened, is_unlocked};

/// After this number of interrupted give-ups, the consumer releases the next one, publishes nothing,
/// and the partition waits.
const BLOCKED_GIVE_UPS: u8 = 4;

/// How much later than a completion a record must be for the order to be certain, by clocks that
/// differ.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// A record, the entry of its key, and what is known of its consumers.
pub(super) struct Facts<'a> {
    pub(super) record: &'a Record,
    pub(super) entry: &'a EntryReport,
    pub(super) group: Option<&'a GroupReport>,
    pub(super) max_attempts: Option<u16>,
    /// The offset behind the last record of the partition.
    pub(super) end: i64,
}

/// For which record the key was granted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrantedFor {
    This,
    Other,
    Unknown,
}

impl Facts<'_> {
    pub(super) fn cause(&self) -> Cause {
        let entry = match self.entry.found() {
            Found::Entry { entry, .. } => entry,
            Found::Unreadable { .. } => return Cause::Unreadable,
            _ => return self.without_entry(),
        };
        match entry.state() {
            State::Processing if self.entry.is_locked() => self.locked(entry),
            State::Processing => self.stuck(entry),
            State::Retrying => self.retrying(entry),
            State::Completed => self.completed(entry),
            State::Failed => match self.granted_for(entry) {
                GrantedFor::Other => Cause::GivenUpForOther,
                GrantedFor::This | GrantedFor::Unknown => Cause::GivenUp,
            },
        }
    }

    fn without_entry(&self) -> Cause {
        let Some(group) = self.group else {
            return Cause::NoEntry;
        };
        match group.committed {
            Some(committed) if committed > self.end => Cause::CommittedBeyondEnd,
            Some(committed) if committed > self.record.offset() => Cause::CommittedWithoutEntry,
            _ if group.is_empty => Cause::NoConsumer,
            None => Cause::NoCommittedOffset,
            Some(_) if group.is_next => Cause::First,
            Some(_) => Cause::Behind,
        }
    }

    fn locked(&self, entry: &Entry) -> Cause {
        match self.granted_for(entry) {
            _ if self.has_no_consumer() && !self.is_committed() => Cause::LockedWithoutConsumer,
            _ if entry.is_give_up() => Cause::GivingUp,
            _ if self.is_committed() => Cause::RunningAfterCommit,
            GrantedFor::Other => Cause::RunningForOther,
            GrantedFor::This | GrantedFor::Unknown => Cause::Running,
        }
    }

    fn stuck(&self, entry: &Entry) -> Cause {
        if self.is_committed() {
            Cause::Abandoned
        } else if entry.is_give_up() && entry.give_ups() >= BLOCKED_GIVE_UPS {
            Cause::GiveUpBlocked
        } else if self.has_no_consumer() {
            Cause::NoConsumer
        } else if entry.is_give_up() {
            Cause::GiveUpInterrupted
        } else if self.is_exhausted(entry) {
            Cause::OwnerLostInLastAttempt
        } else {
            Cause::OwnerLost
        }
    }

    fn retrying(&self, entry: &Entry) -> Cause {
        let is_reopened = is_reopened(entry);
        if self.is_committed() {
            return if is_reopened { Cause::ReopenedAfterCommit } else { Cause::RetryAfterCommit };
        }
        if entry.at() > self.entry.now() {
            return Cause::BackingOff;
        }
        let is_given_up = entry.has_permanent_failure() || self.is_exhausted(entry);
        if entry.give_ups() >= BLOCKED_GIVE_UPS && (is_given_up || self.max_attempts.is_none()) {
            Cause::GiveUpBlocked
        } else if entry.has_permanent_failure() {
            // Even if the group has no members: by default, the consumer stops at such a record.
            Cause::PermanentFailure
        } else if self.is_exhausted(entry) {
            Cause::Exhausted
        } else if self.has_no_consumer() {
            Cause::NoConsumer
        } else if is_reopened {
            Cause::Reopened
        } else if entry.is_released() {
            Cause::Released
        } else if is_unlocked(entry) {
            Cause::Unlocked
        } else {
            Cause::RetryDue
        }
    }

    fn completed(&self, entry: &Entry) -> Cause {
        match self.granted_for(entry) {
            GrantedFor::Other => Cause::DuplicateOfOther,
            GrantedFor::Unknown if self.was_written_after(entry.at()) => Cause::DuplicateOfEarlier,
            GrantedFor::Unknown => Cause::CompletedByAny,
            GrantedFor::This if self.is_uncommitted() => Cause::CompletedUncommitted,
            GrantedFor::This => Cause::Completed,
        }
    }

    /// Details of an earlier grant are not used.
    fn granted_for(&self, entry: &Entry) -> GrantedFor {
        let details = entry
            .details()
            .filter(|details| entry.owner().is_some() && details.owner() == entry.owner());
        match details.and_then(Details::coordinates) {
            None => GrantedFor::Unknown,
            Some(coordinates) if coordinates == *self.record.coordinates() => GrantedFor::This,
            Some(_) => GrantedFor::Other,
        }
    }

    fn was_written_after(&self, time: SystemTime) -> bool {
        let written = match self.record.timestamp() {
            Some(Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time)) => time,
            None => return false,
        };
        written.duration_since(time).is_ok_and(|later| later > CLOCK_TOLERANCE)
    }

    fn is_exhausted(&self, entry: &Entry) -> bool {
        self.max_attempts.is_some_and(|max| entry.attempt() >= max)
    }

    fn is_committed(&self) -> bool {
        self.group.is_some_and(|group| group.is_committed(self.record.offset()))
    }

    fn is_uncommitted(&self) -> bool {
        self.group.is_some_and(|group| !group.is_committed(self.record.offset()))
    }

    fn has_no_consumer(&self) -> bool {
        self.group.is_some_and(|group| group.is_empty)
    }
}
