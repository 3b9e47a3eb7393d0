//! Bugs in deciding whether an entry may expire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use campanile_core::{Answer, Command, Entry, ExpireOutcome, StoreKey, expire, step};
use campanile_idempotency::{
    ExpireStore, Found, InspectStore, Inspection, ScanCursor, ScanFilter, ScanPage, Store,
    StoreError,
};
use campanile_test::{TestClock, contract};

type Decide = fn(Option<&Entry>, &Entry, Duration, SystemTime) -> ExpireOutcome;

/// A store in memory with another `expire`.
#[derive(Clone)]
struct Broken {
    clock: TestClock,
    entries: Arc<Mutex<HashMap<StoreKey, (Entry, SystemTime)>>>,
    decide: Decide,
}

impl Broken {
    fn get(&self, key: &StoreKey, now: SystemTime) -> Option<(Entry, SystemTime)> {
        self.entries.lock().unwrap().get(key).filter(|(_, until)| now < *until).cloned()
    }
}

impl Store for Broken {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let now = self.clock.now();
        let before = self.get(&command.key, now).map(|(entry, _)| entry);
        let (after, reply) = step(before.clone(), &command.operation, now);
        if let Some(entry) = after.filter(|after| before.as_ref() != Some(after)) {
            let until = now + command.retention.of(entry.state());
            self.entries.lock().unwrap().insert(command.key, (entry, until));
        }
        Ok(Answer::new(now, reply))
    }
}

impl InspectStore for Broken {
    async fn inspect(&self, key: &StoreKey) -> Result<Inspection, StoreError> {
        let now = self.clock.now();
        let found = self.get(key, now);
        let entry = |(entry, expires_at)| Found::Entry { entry, expires_at };
        Ok(Inspection::new(now, found.map_or(Found::Absent, entry)))
    }

    async fn scan(&self, _: &ScanFilter, _: &ScanCursor) -> Result<ScanPage, StoreError> {
        Ok(ScanPage::new(self.clock.now(), Vec::new(), None))
    }
}

impl ExpireStore for Broken {
    async fn expire(
        &self,
        entries: &[(StoreKey, Entry)],
        after: Duration,
    ) -> Result<Vec<ExpireOutcome>, StoreError> {
        let now = self.clock.now();
        let expire = |(key, read): &(StoreKey, Entry)| {
            let current = self.get(key, now).map(|(entry, _)| entry);
            let outcome = (self.decide)(current.as_ref(), read, after, now);
            if let (Some(entry), ExpireOutcome::Done) = (current, outcome) {
                self.entries.lock().unwrap().insert(key.clone(), (entry, now + after));
            }
            outcome
        };
        Ok(entries.iter().map(expire).collect())
    }
}

async fn violated_by(decide: Decide) -> Vec<&'static str> {
    let clock = TestClock::new();
    let store = Broken { clock: clock.clone(), entries: Arc::default(), decide };
    let found = contract::expire_violations(&store, &clock).await;
    found.iter().map(|violation| violation.guarantee).collect()
}

#[tokio::test(start_paused = true)]
async fn careless_expiry_is_detected() {
    assert_eq!(violated_by(expire).await, [""; 0]);

    let of_changed = |current: Option<&Entry>, _: &Entry, after, now| {
        current.map_or(ExpireOutcome::Changed, |entry| expire(Some(entry), entry, after, now))
    };
    assert!(violated_by(of_changed).await.contains(&"changed_entry_is_kept_in_every_situation"));

    let of_recent = |current: Option<&Entry>, read: &Entry, after: Duration, now| {
        expire(current, read, after + campanile_core::limits::MIN_RETENTION, now)
    };
    assert!(violated_by(of_recent).await.contains(&"recent_grant_is_kept_in_every_situation"));

    let of_locked = |current: Option<&Entry>, read: &Entry, after, now: SystemTime| {
        expire(current, read, after, now + campanile_core::limits::MAX_LOCK_TTL)
    };
    assert!(violated_by(of_locked).await.contains(&"expiry_is_set_in_every_situation"));

    let of_none = |current: Option<&Entry>, _: &Entry, _, _| {
        current.map_or(ExpireOutcome::Changed, |_| ExpireOutcome::Kept)
    };
    assert!(violated_by(of_none).await.contains(&"expired_entry_is_absent"));
}
