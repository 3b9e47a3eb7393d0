//! Purges: what they delete, and what they keep.

use std::future::pending;
use std::num::NonZeroU32;
use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::entries::{EntryQuery, Purge, PurgeReport};
use campanile_core::{
    Answer, Command, Entry, ExpireOutcome, FencingToken, Operation, Owner, Retention, State,
    StoreKey,
};
use campanile_idempotency::{
    ExpireStore, InspectStore, Inspection, MemoryStore, ScanCursor, ScanFilter, ScanPage, Store,
    StoreError,
};
use tokio::time::Instant;

use crate::list::{Slow, WithGarbage, listed, planted};
use crate::planter::{DAY, MINUTE, Planter, TTL, namespace};

const RECORD: &str = "payments/0@0";

fn all() -> EntryQuery {
    EntryQuery::new(namespace())
}

async fn run(store: &impl ExpireStore, query: EntryQuery) -> PurgeReport {
    Purge::new(query).run(store, |_| {}, pending::<()>()).await.unwrap()
}

fn counts(report: &PurgeReport) -> [u64; 4] {
    let PurgeReport { processing, retrying, completed, failed, .. } = report;
    [processing, retrying, completed, failed].map(|count| count.entries)
}

#[tokio::test]
async fn purge_deletes_the_selected_states() {
    let planter = planted();
    planter.advance(TTL);
    let purge = Purge::new(all().with_state(State::Completed).with_stuck());
    let preview = purge.preview(&planter.store).await.unwrap();
    // The lock of `processing` has expired by now.
    assert_eq!((counts(&preview), preview.kept), ([2, 0, 1, 0], 0));
    assert!(preview.deleted().bytes >= 3 * 44, "{preview:?}");
    assert_eq!(listed(&planter.store, all()).await.len(), 5, "a preview deletes nothing");
    assert_eq!(run(&planter.store, all().with_state(State::Completed).with_stuck()).await, preview);
    assert_eq!(listed(&planter.store, all()).await, ["failed", "retrying"]);
}

#[tokio::test]
async fn locked_recent_and_unreadable_entries_are_kept() {
    let planter = planted();
    let store = WithGarbage(planter.store.clone());
    let report = run(&store, all()).await;
    // Of `completed`, `stuck` and `failed`, the last grant was a day ago.
    assert_eq!((counts(&report), report.kept, report.unreadable), ([1, 0, 1, 1], 2, 1));
    assert_eq!(listed(&planter.store, all()).await, ["processing", "retrying"]);
    let text = report.to_string();
    assert!(text.contains("kept: 2 locked or granted within the last minute, 0 changed"), "{text}");
    planter.advance(TTL);
    planter.with_key("locked").acquire_for(RECORD, MINUTE / 2);
    let report = run(&store, all()).await;
    assert_eq!((counts(&report), report.kept, report.unreadable), ([1, 1, 0, 0], 1, 1));
    assert_eq!(listed(&planter.store, all()).await, ["locked"]);
    planter.advance(MINUTE / 2);
    assert_eq!(
        run(&store, all()).await.kept,
        1,
        "the lock has expired, less than a minute after its grant"
    );
}

#[tokio::test]
async fn younger_entries_are_not_selected() {
    let planter = planted();
    planter.advance(MINUTE);
    let report =
        run(&planter.store, all().with_state(State::Completed).with_min_age(2 * DAY)).await;
    assert_eq!(report, PurgeReport::default());
    let report = run(&planter.store, all().with_min_age(DAY)).await;
    assert_eq!(counts(&report), [1, 0, 1, 1]);
}

#[tokio::test]
async fn deleted_key_is_processed_with_a_higher_token() {
    let planter = Planter::new("p-1");
    let former = planter.acquire(RECORD);
    planter.give_up(former);
    planter.advance(MINUTE);
    run(&planter.store, all()).await;
    assert!(planter.acquire(RECORD).token > former.token);
    assert_eq!(planter.store.entry(&planter.key()).unwrap().attempt(), 1);
}

/// A store in which each key is acquired between the scan and the deletion.
#[derive(Clone)]
struct Busy(MemoryStore);

impl Store for Busy {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.0.apply(command).await
    }
}

impl InspectStore for Busy {
    async fn inspect(&self, key: &StoreKey) -> Result<Inspection, StoreError> {
        self.0.inspect(key).await
    }

    async fn scan(&self, filter: &ScanFilter, cursor: &ScanCursor) -> Result<ScanPage, StoreError> {
        let page = self.0.scan(filter, cursor).await?;
        for (key, _) in &page.entries {
            let operation = Operation::Acquire {
                owner: Owner::new(u64::MAX).unwrap(),
                ttl: TTL,
                max_attempts: 8,
                fingerprint: None,
                floor: FencingToken::ZERO,
                details: None,
            };
            let retention = Retention::default();
            self.0.apply(Command { key: key.clone(), operation, retention }).await?;
        }
        Ok(page)
    }
}

impl ExpireStore for Busy {
    async fn expire(
        &self,
        entries: &[(StoreKey, Entry)],
        after: Duration,
    ) -> Result<Vec<ExpireOutcome>, StoreError> {
        self.0.expire(entries, after).await
    }
}

#[tokio::test]
async fn key_that_was_acquired_meanwhile_is_kept() {
    let planter = planted();
    planter.advance(TTL);
    let report = run(&Busy(planter.store.clone()), all()).await;
    // `retrying`, `stuck` and `processing` were granted to another owner.
    assert_eq!((counts(&report), report.changed), ([0, 0, 1, 1], 3));
    let left = listed(&planter.store, all().with_state(State::Processing)).await;
    assert_eq!(left, ["processing", "retrying", "stuck"]);
}

fn plant(completed: usize) -> Planter {
    let planter = Planter::new("k");
    for n in 0..completed {
        let planter = planter.with_key(&format!("k-{n}"));
        planter.complete(planter.acquire(RECORD), "");
    }
    planter.advance(MINUTE);
    planter
}

#[tokio::test(start_paused = true)]
async fn rate_limits_the_deleted_entries() {
    let planter = plant(500);
    let start = Instant::now();
    let purge = Purge::new(all()).with_rate(NonZeroU32::new(100).unwrap());
    let report = purge.run(&planter.store, |_| {}, pending::<()>()).await.unwrap();
    assert_eq!(report.completed.entries, 500);
    let elapsed = start.elapsed().as_secs_f64();
    assert!((4.9..5.1).contains(&elapsed), "{elapsed}");
}

#[tokio::test(start_paused = true)]
async fn purge_stops_while_it_waits_for_the_next_page() {
    // More than a page.
    let planter = plant(1_500);
    let store = Slow(planter.store.clone());
    // Selects nothing, so there is no rate to wait for.
    let purge = Purge::new(all().with_state(State::Failed)).with_max_share(1);
    let stop = tokio::time::sleep(Duration::from_millis(100));
    let start = Instant::now();
    assert!(purge.run(&store, |_| {}, stop).await.unwrap().interrupted);
    assert_eq!(start.elapsed(), Duration::from_millis(100));
}

/// The time since the creation says nothing about a key that was completed late.
#[tokio::test]
async fn age_counts_from_the_completion() {
    let planter = Planter::new("late");
    planter.fail(planter.acquire(RECORD), Duration::ZERO, false);
    planter.advance(DAY);
    planter.complete(planter.acquire(RECORD), RECORD);
    planter.advance(MINUTE);
    let report = run(&planter.store, all().with_min_age(DAY)).await;
    assert_eq!(report.deleted().entries, 0, "{report:?}");
    assert_eq!(listed(&planter.store, all().with_max_age(MINUTE)).await, ["late"]);
    planter.advance(DAY);
    assert_eq!(listed(&planter.store, all().with_max_age(MINUTE)).await, [""; 0]);
    assert_eq!(run(&planter.store, all().with_min_age(DAY)).await.deleted().entries, 1);
}

#[tokio::test(start_paused = true)]
async fn stopped_purge_reports_and_the_next_one_deletes_the_rest() {
    let planter = plant(500);
    let purge = Purge::new(all()).with_rate(NonZeroU32::new(100).unwrap());
    let stop = tokio::time::sleep(Duration::from_millis(1_050));
    let report = purge.run(&planter.store, |_| {}, stop).await.unwrap();
    assert!(report.interrupted);
    let deleted = report.deleted().entries;
    assert!((90..=110).contains(&deleted), "{deleted}");
    let mut seen = PurgeReport::default();
    let progress = |report: &PurgeReport| seen = report.clone();
    let rest = Purge::new(all()).run(&planter.store, progress, pending::<()>()).await.unwrap();
    assert_eq!((rest.deleted().entries, &seen), (500 - deleted, &rest));
    let nothing = Purge::new(all()).run(&planter.store, |_| {}, pending::<()>()).await.unwrap();
    assert_eq!(nothing, PurgeReport::default());
}

#[tokio::test]
async fn store_error_ends_the_purge() {
    let store = crate::list::Broken(StoreError::unavailable);
    let error = Purge::new(all()).preview(&store).await.unwrap_err();
    assert!(matches!(error, AdminError::Unavailable { .. }), "{error}");
}
