//! What is listed.

use std::time::Duration;

use campanile_admin::entries::{EntryPages, EntryQuery};
use campanile_core::{Answer, Command, Entry, ExpireOutcome, State, StoreKey};
use campanile_idempotency::{
    ExpireStore, Found, InspectStore, Inspection, MemoryStore, ScanCursor, ScanFilter, ScanPage,
    Store, StoreError,
};
use tokio::time::Instant;

use crate::planter::{DAY, MINUTE, Planter, namespace, store_key};

const RECORD: &str = "payments/0@0";

/// One entry in each state, named after it.
pub(crate) fn planted() -> Planter {
    let completed = Planter::new("completed");
    completed.complete(completed.acquire(RECORD), RECORD);
    let stuck = completed.with_key("stuck");
    stuck.acquire(RECORD);
    let failed = stuck.with_key("failed");
    failed.give_up(failed.acquire(RECORD));
    completed.advance(DAY);
    let retrying = failed.with_key("retrying");
    retrying.fail(retrying.acquire(RECORD), MINUTE, false);
    let processing = retrying.with_key("processing");
    processing.acquire(RECORD);
    processing
}

pub(crate) async fn listed(store: &impl InspectStore, query: EntryQuery) -> Vec<String> {
    let mut pages = EntryPages::new(store, query);
    let mut names = Vec::new();
    while let Some(page) = pages.next().await.unwrap() {
        names.extend(page.iter().map(|report| report.name().unwrap_or_else(|| report.digest())));
    }
    names.sort_unstable();
    names
}

#[tokio::test]
async fn query_selects_by_state_age_and_error() {
    let store = planted().store;
    let query = || EntryQuery::new(namespace());
    let all = ["completed", "failed", "processing", "retrying", "stuck"];
    assert_eq!(listed(&store, query()).await, all);
    let processing = listed(&store, query().with_state(State::Processing)).await;
    assert_eq!(processing, ["processing", "stuck"]);
    let two = query().with_state(State::Failed).with_state(State::Retrying);
    assert_eq!(listed(&store, two).await, ["failed", "retrying"]);
    assert_eq!(listed(&store, query().with_stuck()).await, ["stuck"]);
    let more = query().with_stuck().with_state(State::Failed);
    assert_eq!(listed(&store, more).await, ["failed", "stuck"]);
    let more = query().with_stuck().with_state(State::Processing);
    assert_eq!(listed(&store, more).await, ["processing", "stuck"]);
    let old = listed(&store, query().with_min_age(DAY)).await;
    assert_eq!(old, ["completed", "failed", "stuck"]);
    assert_eq!(listed(&store, query().with_error("stolen")).await, ["failed"]);
    assert_eq!(listed(&store, query().with_error("card")).await, ["failed", "retrying"]);
}

#[tokio::test]
async fn pages_list_every_entry() {
    let planter = planted();
    for n in 0..2_500 {
        planter.with_key(&format!("k-{n}")).acquire(RECORD);
    }
    assert_eq!(listed(&planter.store, EntryQuery::new(namespace())).await.len(), 2_505);
}

#[tokio::test(start_paused = true)]
async fn pages_take_at_most_their_share_of_the_time() {
    let planter = planted();
    for n in 0..2_500 {
        planter.with_key(&format!("k-{n}")).acquire(RECORD);
    }
    let store = Slow(planter.store);
    for (percent, expected) in [(None, 410), (Some(1), 2_010), (Some(50), 50), (Some(100), 30)] {
        let mut pages = EntryPages::new(&store, EntryQuery::new(namespace()));
        if let Some(percent) = percent {
            pages = pages.with_max_share(percent);
        }
        let start = Instant::now();
        let mut count = 0;
        while pages.next().await.unwrap().is_some() {
            count += 1;
        }
        let elapsed = start.elapsed();
        assert_eq!((count, elapsed), (3, Duration::from_millis(expected)), "{percent:?}");
    }
}

#[tokio::test]
async fn unreadable_value_is_listed_by_every_query() {
    let store = WithGarbage(planted().store);
    let digest = format!("{:032x}", u128::from_be_bytes(*store_key("garbage").digest()));
    let query = EntryQuery::new(namespace()).with_state(State::Failed).with_error("stolen");
    assert_eq!(listed(&store, query).await, [digest, "failed".to_owned()]);
}

/// A store that also keeps something that is no entry.
#[derive(Clone)]
pub(crate) struct WithGarbage(pub(crate) MemoryStore);

fn garbage() -> Found {
    Found::Unreadable { reason: "unreadable entry: first byte is 0xc2, expected 0xc1".into() }
}

impl Store for WithGarbage {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.0.apply(command).await
    }
}

impl InspectStore for WithGarbage {
    async fn inspect(&self, key: &StoreKey) -> Result<Inspection, StoreError> {
        let inspection = self.0.inspect(key).await?;
        let is_garbage = *key == store_key("garbage");
        let found = if is_garbage { garbage() } else { inspection.found };
        Ok(Inspection::new(inspection.now, found))
    }

    async fn scan(&self, filter: &ScanFilter, cursor: &ScanCursor) -> Result<ScanPage, StoreError> {
        let mut page = self.0.scan(filter, cursor).await?;
        page.entries.push((store_key("garbage"), garbage()));
        Ok(page)
    }
}

impl ExpireStore for WithGarbage {
    async fn expire(
        &self,
        entries: &[(StoreKey, Entry)],
        after: Duration,
    ) -> Result<Vec<ExpireOutcome>, StoreError> {
        assert!(entries.iter().all(|(key, _)| *key != store_key("garbage")));
        self.0.expire(entries, after).await
    }
}

/// A store that is busy for 10 ms with each page.
#[derive(Clone)]
pub(crate) struct Slow(pub(crate) MemoryStore);

impl Store for Slow {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.0.apply(command).await
    }
}

impl InspectStore for Slow {
    async fn inspect(&self, key: &StoreKey) -> Result<Inspection, StoreError> {
        self.0.inspect(key).await
    }

    async fn scan(&self, filter: &ScanFilter, cursor: &ScanCursor) -> Result<ScanPage, StoreError> {
        let busy = Duration::from_millis(10);
        tokio::time::sleep(busy).await;
        Ok(self.0.scan(filter, cursor).await?.with_busy(busy))
    }
}

impl ExpireStore for Slow {
    async fn expire(
        &self,
        entries: &[(StoreKey, Entry)],
        after: Duration,
    ) -> Result<Vec<ExpireOutcome>, StoreError> {
        self.0.expire(entries, after).await
    }
}

/// A store that answers nothing.
#[derive(Clone)]
pub(crate) struct Broken(pub(crate) fn(&'static str) -> StoreError);

impl Store for Broken {
    async fn apply(&self, _: Command) -> Result<Answer, StoreError> {
        Err((self.0)("16 buckets, not 64"))
    }
}

impl InspectStore for Broken {
    async fn inspect(&self, _: &StoreKey) -> Result<Inspection, StoreError> {
        Err((self.0)("16 buckets, not 64"))
    }

    async fn scan(&self, _: &ScanFilter, _: &ScanCursor) -> Result<ScanPage, StoreError> {
        Err((self.0)("16 buckets, not 64"))
    }
}
