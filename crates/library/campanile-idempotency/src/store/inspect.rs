//! Reading entries, for operators and tools.

use std::future::Future;
use std::time::{Duration, SystemTime};

use campanile_core::{Entry, Namespace, State, StoreKey};

use super::{Store, StoreError};

/// A store whose entries can be read without changing them.
///
/// A [`Store`] for applications does not need it; it is for tools.
pub trait InspectStore: Store {
    /// Reads the entry of a key.
    ///
    /// # Errors
    /// If the store does not answer. A value that is not an entry is no error: see
    /// [`Found::Unreadable`].
    fn inspect(
        &self,
        key: &StoreKey,
    ) -> impl Future<Output = Result<Inspection, StoreError>> + Send;

    /// Reads a page of the entries that match, in no particular order. Start with
    /// [`ScanCursor::default`], and continue with the cursor of each page until there is none.
    ///
    /// A page examines a bounded number of entries, so that the store is never blocked for long. It
    /// may be empty although others follow. An entry that exists during the whole scan is returned at
    /// least once.
    ///
    /// # Errors
    /// If the store does not answer, or if the cursor is not one of this store.
    fn scan(
        &self,
        filter: &ScanFilter,
        cursor: &ScanCursor,
    ) -> impl Future<Output = Result<ScanPage, StoreError>> + Send;
}

/// What a store keeps for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The store's clock, with which the times of the entry can be compared.
    pub now: SystemTime,
    /// What the store keeps.
    pub found: Found,
}

impl Inspection {
    /// Creates an `Inspection`. For stores.
    pub fn new(now: SystemTime, found: Found) -> Self {
        Self { now, found }
    }
}

/// What was found under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// There is no entry: the key was never used, or its entry has expired.
    Absent,
    /// An entry.
    Entry {
        /// The entry.
        entry: Entry,
        /// When it expires, by the store's clock, if nothing changes it before.
        expires_at: SystemTime,
    },
    /// Something that is not an entry, or one of a later version.
    Unreadable {
        /// Why it cannot be read. Contains none of its contents.
        reason: Box<str>,
    },
}

/// Selects the entries of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ScanFilter {
    namespace: Namespace,
    states: Vec<State>,
    min_age: Duration,
}

impl ScanFilter {
    /// Selects all entries of a namespace.
    pub const fn new(namespace: Namespace) -> Self {
        Self { namespace, states: Vec::new(), min_age: Duration::ZERO }
    }

    /// Selects only entries in this state. If it is called several times, the states add up.
    pub fn with_state(mut self, state: State) -> Self {
        self.states.push(state);
        self
    }

    /// Selects only entries that were created at least this long ago.
    pub const fn with_min_age(mut self, age: Duration) -> Self {
        self.min_age = age;
        self
    }

    /// Returns the namespace.
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the selected states; all states if empty.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Returns the minimum age.
    pub const fn min_age(&self) -> Duration {
        self.min_age
    }

    /// Checks whether an entry is selected, apart from its namespace.
    pub fn matches(&self, entry: &Entry, now: SystemTime) -> bool {
        let is_old =
            || now.checked_sub(self.min_age).is_some_and(|latest| entry.created() <= latest);
        (self.states.is_empty() || self.states.contains(&entry.state()))
            && (self.min_age.is_zero() || is_old())
    }
}

/// Where a scan continues. The default is its start. The bytes mean something only to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanCursor(Box<[u8]>);

impl ScanCursor {
    /// Creates a cursor. For stores; empty bytes are the start.
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes of the cursor.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A page of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanPage {
    /// The store's clock.
    pub now: SystemTime,
    /// The entries that match, and what is not an entry.
    pub entries: Vec<(StoreKey, Found)>,
    /// Where the scan continues; `None` at its end.
    pub next: Option<ScanCursor>,
    /// How long the store was busy with the page, at most. A tool that waits in proportion between
    /// pages leaves the rest of the store's time to others.
    pub busy: Duration,
}

impl ScanPage {
    /// Creates a page. For stores.
    pub fn new(now: SystemTime, entries: Vec<(StoreKey, Found)>, next: Option<ScanCursor>) -> Self {
        Self { now, entries, next, busy: Duration::ZERO }
    }

    /// Sets how long the store was busy with the page. Default: zero, for a store that serves nobody
    /// else meanwhile.
    #[must_use]
    pub fn with_busy(self, busy: Duration) -> Self {
        Self { busy, ..self }
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{FencingToken, Grant, Operation, Owner, step};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// An entry that was COMPLETED when it was created, at this many seconds.
    fn completed(created: u32) -> Entry {
        let (token, owner) = (FencingToken::ZERO, Owner::new(1).unwrap());
        let complete = Operation::Complete {
            grant: Grant { token, owner },
            attempt: 1,
            fingerprint: None,
            reply: None,
            details: None,
        };
        step(None, &complete, SystemTime::UNIX_EPOCH + SECOND * created).0.unwrap()
    }

    #[test]
    fn filter_selects_states_and_ages() {
        let all = || ScanFilter::new(Namespace::try_from("n").unwrap());
        let failed = all().with_state(State::Failed);
        let settled = failed.clone().with_state(State::Completed);
        for (filter, now, expected) in [
            (all(), 10, true),
            (all(), 0, true),
            (failed.clone(), 10, false),
            (settled.clone(), 10, true),
            (all().with_min_age(SECOND * 3), 12, false),
            (all().with_min_age(SECOND * 3), 13, true),
            (all().with_min_age(SECOND * 3), 14, true),
            (failed.with_min_age(SECOND), 14, false),
            (settled.with_min_age(SECOND), 14, true),
        ] {
            let now = SystemTime::UNIX_EPOCH + SECOND * now;
            assert_eq!(filter.matches(&completed(10), now), expected, "{filter:?} at {now:?}");
        }
        let filter = all().with_state(State::Failed).with_min_age(SECOND);
        assert_eq!(filter.namespace().as_str(), "n");
        assert_eq!((filter.states(), filter.min_age()), (&[State::Failed][..], SECOND));
    }

    #[test]
    fn cursor_and_page_contain_what_was_set() {
        assert_eq!(ScanCursor::from_bytes(*b"next").as_bytes(), b"next");
        let page = ScanPage::new(SystemTime::UNIX_EPOCH, Vec::new(), None);
        assert_eq!(page.busy, Duration::ZERO);
        assert_eq!(page.with_busy(SECOND).busy, SECOND);
    }
}
