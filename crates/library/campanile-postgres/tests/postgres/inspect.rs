//! Reading entries without changing them.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_core::{
    Details, Entry, ExpireOutcome, IdempotencyKey, Namespace, Operation, Reply, State, StoreKey,
    TraceContext,
};
use campanile_idempotency::{
    ExpireStore, Found, InspectStore, ScanCursor, ScanFilter, StoreErrorKind,
};
use campanile_postgres::PgStore;

use crate::support::{Database, acquire, acquire_grant, apply, chain, complete, key, owner};

/// Inserts entries in this namespace with the keys of these numbers, in all states by turns, each
/// created as many seconds ago as its number.
fn insert(database: &Database, namespace: &str, numbers: &str, expires_in: &str) {
    database.psql(&format!(
        "INSERT INTO campanile.entry (namespace, key, state, attempt, token, owner, created, at, expires_at)
         SELECT '{namespace}', substring(sha256(n::text::bytea) FROM 1 FOR 16),
             ('{{P,R,C,F}}'::\"char\"[])[n % 4 + 1], 1, n + 1, 1, now() - n * interval '1 s', now(),
             now() + interval '{expires_in}'
         FROM {numbers} AS n"
    ));
}

fn filter() -> ScanFilter {
    ScanFilter::new(namespace("tests"))
}

fn namespace(name: &str) -> Namespace {
    Namespace::try_from(name).unwrap()
}

/// Scans to the end. Returns the entries by their digest, and the number of pages.
async fn scan(store: &PgStore, filter: &ScanFilter) -> (BTreeMap<[u8; 16], Entry>, usize) {
    let (mut entries, mut pages, mut cursor) = (BTreeMap::new(), 0, ScanCursor::default());
    loop {
        let page = store.scan(filter, &cursor).await.unwrap();
        pages += 1;
        for (key, found) in page.entries {
            let Found::Entry { entry, expires_at } = found else { panic!("{found:?}") };
            assert_eq!(key.namespace(), filter.namespace());
            assert!(expires_at > page.now);
            assert!(entries.insert(*key.digest(), entry).is_none(), "twice: {key:?}");
        }
        match page.next {
            Some(next) => cursor = next,
            None => return (entries, pages),
        }
    }
}

#[tokio::test]
async fn inspected_entry_is_complete_and_absent_once_expired() {
    let database = Database::new().await;
    let store = database.store().await;
    let key = key("key");
    assert_eq!(store.inspect(&key).await.unwrap().found, Found::Absent);
    let details = Details::builder(owner(1)).instance("host/1").build();
    let with_details = |details: &Details| {
        let mut operation = acquire(1);
        if let Operation::Acquire { details: set, .. } = &mut operation {
            *set = Some(details.clone());
        }
        operation
    };
    let reply = apply(&store, &key, with_details(&details)).await.unwrap();
    let inspection = store.inspect(&key).await.unwrap();
    let Found::Entry { entry, expires_at } = inspection.found else {
        panic!("{:?}", inspection.found);
    };
    assert_eq!((entry.state(), entry.details()), (State::Processing, Some(&details)));
    let kept_for = expires_at.duration_since(inspection.now).unwrap();
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    assert!(kept_for <= week && kept_for > week - Duration::from_secs(300), "{kept_for:?}");
    assert!(entry.at() > inspection.now);

    let Reply::Acquired { token, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(entry.token(), token);
    database.psql("UPDATE campanile.entry SET expires_at = clock_timestamp()");
    assert_eq!(store.inspect(&key).await.unwrap().found, Found::Absent);
}

#[tokio::test]
async fn inspect_waits_for_no_row_lock() {
    let database = Database::new().await;
    let store = database.store().await;
    let grant = acquire_grant(&store, &key("key"), 1).await;
    apply(&store, &key("key"), complete(grant, b"reply")).await.unwrap();
    let other = database.client().await;
    other.batch_execute("BEGIN; SELECT FROM campanile.entry FOR UPDATE").await.unwrap();
    let found = store.inspect(&key("key")).await.unwrap().found;
    let Found::Entry { entry, .. } = found else { panic!("{found:?}") };
    assert_eq!(entry.reply().unwrap(), &b"reply"[..]);
    assert_eq!(scan(&store, &filter()).await.0.len(), 1);
}

#[tokio::test]
async fn scan_returns_each_live_entry_of_its_namespace_once() {
    let database = Database::new().await;
    insert(&database, "tests", "generate_series(0, 2499)", "1 h");
    insert(&database, "tests", "generate_series(2500, 2999)", "-1 s");
    insert(&database, "others", "generate_series(0, 999)", "1 h");
    let store = database.store().await;
    let (entries, pages) = scan(&store, &filter()).await;
    assert_eq!((entries.len(), pages), (2_500, 3 + 1), "3 000 rows examined");
    for (digest, entry) in entries {
        let key = StoreKey::from_digest(namespace("tests"), digest);
        let inspected = store.inspect(&key).await.unwrap().found;
        assert!(matches!(inspected, Found::Entry { entry: it, .. } if it == entry));
    }
    let others = ScanFilter::new(namespace("others"));
    assert_eq!(scan(&store, &others).await.0.len(), 1_000);
    let none = ScanFilter::new(namespace("none"));
    assert_eq!(scan(&store, &none).await, (BTreeMap::new(), 1));
}

#[tokio::test]
async fn scan_filter_selects_states_and_age() {
    let database = Database::new().await;
    insert(&database, "tests", "generate_series(0, 2399)", "1 h");
    let store = database.store().await;
    for state in [State::Processing, State::Retrying, State::Completed, State::Failed] {
        let (entries, pages) = scan(&store, &filter().with_state(state)).await;
        assert_eq!((entries.len(), pages), (600, 3), "{state:?}");
        assert!(entries.values().all(|entry| entry.state() == state));
    }
    let settled = filter().with_state(State::Completed).with_state(State::Failed);
    assert_eq!(scan(&store, &settled).await.0.len(), 1_200);

    // The newest 600 entries were created less than a quarter of an hour ago; others may reach that
    // age while the test runs.
    let minutes = |minutes: u64| filter().with_min_age(Duration::from_secs(minutes * 60));
    let (entries, _) = scan(&store, &minutes(30)).await;
    let now = store.inspect(&key("none")).await.unwrap().now;
    assert!((600..1_200).contains(&entries.len()), "{}", entries.len());
    assert!(entries.values().all(|entry| minutes(30).matches(entry, now)));
    assert!(scan(&store, &filter().with_min_age(Duration::MAX)).await.0.is_empty());
}

#[tokio::test]
async fn page_ends_early_after_large_replies() {
    let database = Database::new().await;
    insert(&database, "tests", "generate_series(0, 399)", "1 h");
    database.psql(
        "UPDATE campanile.entry SET state = 'C', giving_up = false, released = false, \
         reply = convert_to(repeat('x', 100000), 'UTF8')",
    );
    let store = database.store().await;
    let page = store.scan(&filter(), &ScanCursor::default()).await.unwrap();
    assert_eq!(page.entries.len(), 42, "4 MiB");
    assert!(page.next.is_some());
    assert_eq!(scan(&store, &filter()).await.0.len(), 400);
}

#[tokio::test]
async fn page_of_large_table_reads_a_thousand_rows_by_index() {
    let database = Database::new().await;
    insert(&database, "tests", "generate_series(0, 119999)", "1 h");
    let client = database.client().await;
    let rows_read = async || -> (i64, i64) {
        let count = "SELECT seq_scan + seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables \
            WHERE relid = 'campanile.entry'::regclass";
        let row = client.query_one(count, &[]).await.unwrap();
        (row.get(0), row.get(1))
    };
    // Without statistics, and with them.
    for statistics in ["", "ANALYZE campanile.entry"] {
        client.batch_execute(statistics).await.unwrap();
        // The first page, a later one, and one that selects nothing.
        for (beyond, state) in [("", "C"), ("\\x80", "C"), ("\\x80", "-")] {
            let page = format!(
                "SELECT now, next, (e).* \
                 FROM campanile.scan('tests', '{beyond}', '{{{state}}}', 0, 1000, 1000000)"
            );
            // The counters of a session are reset between transactions.
            client.batch_execute("BEGIN").await.unwrap();
            let (scanned_before, fetched_before) = rows_read().await;
            let rows = client.query(&page, &[]).await.unwrap();
            let (scanned, fetched) = rows_read().await;
            client.batch_execute("COMMIT").await.unwrap();
            assert_eq!((scanned - scanned_before, fetched - fetched_before), (0, 1_000), "{page}");
            assert!(rows.last().unwrap().get::<_, Option<&[u8]>>("next").is_some());
        }
    }
    let store = database.store().await;
    let (entries, pages) = scan(&store, &filter().with_state(State::Failed)).await;
    assert_eq!((entries.len(), pages), (30_000, 121));
}

#[tokio::test]
async fn cursor_of_another_store_is_refused() {
    let store = Database::new().await.store().await;
    let cursor = ScanCursor::from_bytes(*b"12345");
    let error = store.scan(&filter(), &cursor).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreadable);
    assert!(chain(&error).contains("cursor"), "{}", chain(&error));
}

#[tokio::test]
async fn describe_shows_what_details_contain() {
    let database = Database::new().await;
    let store = database.store().await;
    let describe = |column: &str| {
        database.psql(&format!(
            "SELECT d.* FROM campanile.entry e CROSS JOIN campanile.describe({column}) d"
        ))
    };
    let set = async |details: &Details| {
        database.psql("DELETE FROM campanile.entry");
        let mut operation = acquire(1);
        if let Operation::Acquire { details: set, .. } = &mut operation {
            *set = Some(details.clone());
        }
        apply(&store, &key("key"), operation).await.unwrap();
    };
    let key = |bytes: &'static [u8]| IdempotencyKey::new(bytes).unwrap();
    let trace = TraceContext::new(0xabc, u64::MAX, 1).unwrap();
    let details = Details::builder(owner(u64::MAX))
        .key(&key("zahlung-ü".as_bytes()))
        .instance("host/1")
        .coordinates(&"payments/3@42".parse().unwrap())
        .trace(&trace);
    set(&details.build()).await;
    assert_eq!(describe("details"), format!("-1|zahlung-ü|host/1|payments/3@42|{trace}"));
    assert_eq!(describe("NULL"), "||||");
    // Cut within its last part, and after a part of an unknown kind.
    assert_eq!(
        describe("'\\x630100' || substring(details FROM 1 FOR octet_length(details) - 1)"),
        "-1|zahlung-ü|host/1|payments/3@42|"
    );
    for (bytes, shown) in [(&b"\xff\0"[..], "\\xff00"), (b"a\0", "\\x6100")] {
        set(&Details::builder(owner(1)).key(&key(bytes)).build()).await;
        assert_eq!(describe("details"), format!("1|{shown}|||"));
    }
}

#[tokio::test]
async fn details_longer_than_65535_bytes_are_rejected() {
    let database = Database::new().await;
    acquire_grant(&database.store().await, &key("key"), 1).await;
    let client = database.client().await;
    let set = |len: usize| {
        format!("UPDATE campanile.entry SET details = convert_to(repeat('x', {len}), 'UTF8')")
    };
    client.batch_execute(&set(65_535)).await.unwrap();
    let error = client.batch_execute(&set(65_536)).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "23514", "{error}");
}

#[tokio::test]
async fn entry_that_is_being_changed_is_not_expired() {
    let database = Database::new().await;
    let store = database.store().await;
    insert(&database, "tests", "generate_series(1, 4)", "1 hour");
    let (entries, _) = scan(&store, &filter()).await;
    let key = |digest: &[u8; 16]| StoreKey::from_digest(namespace("tests"), *digest);
    // The expired lock is that of a PROCESSING entry.
    let entries: Vec<_> =
        entries.iter().map(|(digest, entry)| (key(digest), entry.clone())).collect();
    let client = database.client().await;
    let locked = &entries[1].0;
    client.batch_execute("BEGIN").await.unwrap();
    let update = "UPDATE campanile.entry SET at = now() WHERE key = $1";
    client.execute(update, &[&&locked.digest()[..]]).await.unwrap();
    let outcomes = store.expire(&entries, Duration::ZERO).await.unwrap();
    let mut expected = [ExpireOutcome::Done; 4];
    expected[1] = ExpireOutcome::Changed;
    assert_eq!(outcomes, expected);
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.psql("SELECT count(*) FROM campanile.entry"), "1");
    let outcomes = store.expire(&entries[1..2], Duration::ZERO).await.unwrap();
    assert_eq!(outcomes, [ExpireOutcome::Changed]);
}
