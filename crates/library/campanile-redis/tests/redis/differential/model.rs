//! A model of what is stored under a key.

use std::fmt;
use std::time::SystemTime;

use campanile_core::{Command, Entry, FencingToken, Owner, Reply, State, step};

/// What is stored under a key.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Stored {
    Absent,
    Text(Vec<u8>),
    /// A list or a hash.
    OtherType,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("nothing"),
            Self::OtherType => f.write_str("another type"),
            Self::Text(bytes) => match Entry::from_bytes(bytes) {
                Ok(entry) => write!(f, "{entry:?}"),
                Err(error) => write!(f, "{error}: {}", bytes.escape_ascii()),
            },
        }
    }
}

/// When Redis deletes the key, in ms since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Computed for a key that the last batch has written.
    About(i64),
    /// As reported by Redis; -1: never.
    At(i64),
}

#[derive(Clone, Debug)]
pub(super) struct KeyModel {
    pub(super) stored: Stored,
    pub(super) expiry: Expiry,
}

impl KeyModel {
    pub(super) const ABSENT: Self = Self { stored: Stored::Absent, expiry: Expiry::At(-2) };

    pub(super) fn entry(&self) -> Option<Entry> {
        match &self.stored {
            Stored::Text(bytes) => Entry::from_bytes(bytes).ok(),
            _ => None,
        }
    }

    /// The stored grant. Also read from a value that is not an entry, so that the value gets
    /// commands that would change it if it were one.
    pub(super) fn grant(&self) -> Option<(FencingToken, Option<Owner>)> {
        let Stored::Text(bytes) = &self.stored else {
            return None;
        };
        let token = u64::from_be_bytes(*bytes.get(8..)?.first_chunk()?);
        let owner = u64::from_be_bytes(*bytes.get(16..)?.first_chunk()?);
        let token = FencingToken::new(token).unwrap_or(FencingToken::ZERO);
        Some((token, Owner::new(owner)))
    }

    /// Applies the command as a store should.
    pub(super) fn apply(&mut self, command: &Command, now: SystemTime) -> Reply {
        let entry = match &self.stored {
            Stored::Absent => None,
            Stored::OtherType => return Reply::Corrupt,
            Stored::Text(bytes) => match Entry::from_bytes(bytes) {
                Ok(entry) => Some(entry),
                Err(_) => return Reply::Corrupt,
            },
        };
        let (after, reply) = step(entry, &command.operation, now);
        let Some(after) = after else { return reply };
        let stored = Stored::Text(after.to_bytes().to_vec());
        if stored != self.stored {
            let kept = command.retention.of(after.state()).as_millis();
            self.expiry = Expiry::About(milliseconds(now) + i64::try_from(kept).unwrap());
            self.stored = stored;
        }
        reply
    }

    /// Checks whether Redis deletes the key at the right time.
    pub(super) fn expires_at(&self, milliseconds: i64) -> bool {
        // The script reads the clock before its SET does, and the machine may be busy. The
        // retentions to distinguish differ by many minutes.
        const TOLERANCE: i64 = 10_000;
        match self.expiry {
            Expiry::At(exactly) => milliseconds == exactly,
            Expiry::About(about) => (about - TOLERANCE..=about + TOLERANCE).contains(&milliseconds),
        }
    }
}

fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// The name of a reply in the summary.
pub(super) fn reply_kind(reply: &Reply) -> &'static str {
    match reply {
        Reply::Acquired { .. } => "Acquired",
        Reply::Exhausted { .. } => "Exhausted",
        Reply::Locked { .. } => "Locked",
        Reply::BackingOff { .. } => "BackingOff",
        Reply::Duplicate { .. } => "Duplicate",
        Reply::AlreadyGivenUp { .. } => "given up",
        Reply::Mismatch => "Mismatch",
        Reply::Renewed => "Renewed",
        Reply::Completed => "Completed",
        Reply::Retrying => "Retrying",
        Reply::Released => "Released",
        Reply::StepRecorded => "StepRecorded",
        Reply::StepTooLarge => "StepTooLarge",
        Reply::GivenUp => "GivenUp",
        Reply::Reopened => "Reopened",
        Reply::Settled(State::Processing) => "Settled(P)",
        Reply::Settled(State::Retrying) => "Settled(R)",
        Reply::Settled(State::Completed) => "Settled(C)",
        Reply::Settled(State::Failed) => "Settled(F)",
        Reply::Lost => "Lost",
        Reply::Corrupt => "Corrupt",
        other => panic!("unknown reply: {other:?}"),
    }
}

/// The number of names.
pub(super) const REPLY_KINDS: usize = 21;
