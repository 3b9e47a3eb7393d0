//! Scanning the entries of a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use campanile_core::{IdempotencyKey, Namespace, Operation, Reply, State, StoreKey};
use campanile_idempotency::{
    Found, InspectStore, ScanCursor, ScanFilter, ScanPage, Store, StoreErrorKind,
};
use campanile_redis::RedisStore;
use campanile_test::{RedisCluster, eventually};

use crate::support::{
    NAMESPACE, acquire, acquire_lock, chain, command, complete, grant, key, raw_connection,
    redis_key, replies, server_and_store,
};

type Entries = BTreeMap<[u8; 16], Found>;

fn all() -> ScanFilter {
    ScanFilter::new(Namespace::try_from(NAMESPACE).unwrap())
}

async fn first_page(store: &RedisStore, filter: &ScanFilter) -> ScanPage {
    store.scan(filter, &ScanCursor::default()).await.unwrap()
}

async fn scan(store: &RedisStore, filter: &ScanFilter) -> Entries {
    let (mut entries, mut cursor) = (Entries::new(), Some(ScanCursor::default()));
    while let Some(at) = cursor {
        let page = store.scan(filter, &at).await.unwrap();
        entries.extend(page.entries.into_iter().map(|(key, found)| (*key.digest(), found)));
        cursor = page.next;
    }
    entries
}

fn digests(keys: &[StoreKey]) -> BTreeSet<[u8; 16]> {
    keys.iter().map(|key| *key.digest()).collect()
}

fn found_digests(entries: &Entries) -> BTreeSet<[u8; 16]> {
    entries.keys().copied().collect()
}

/// Stores entries in all four states in turn.
async fn store_entries(store: &RedisStore, keys: &[StoreKey]) {
    let acquires = keys.iter().map(|key| command(key, acquire(1))).collect();
    let settles = keys.iter().zip(replies(store.apply_batch(acquires).await)).enumerate();
    let settles = settles.filter_map(|(n, (key, reply))| {
        let Reply::Acquired { token, .. } = reply else { panic!("{reply:?}") };
        let grant = grant(token, 1);
        let delay = Duration::from_secs(60);
        Some(command(
            key,
            match n % 4 {
                0 => return None,
                1 => Operation::Fail { grant, delay, last: false, error: "error".into() },
                2 => complete(grant, "a reply that is longer than nothing"),
                _ => Operation::GiveUp { grant, reason: "reason".into() },
            },
        ))
    });
    replies(store.apply_batch(settles.collect()).await);
}

fn keys(count: usize) -> Vec<StoreKey> {
    (0..count).map(|n| key(format!("key {n}"))).collect()
}

#[tokio::test]
async fn scan_returns_entries_in_selected_states() {
    let (_server, store) = server_and_store().await;
    let keys = keys(1_200);
    store_entries(&store, &keys).await;
    assert_eq!(found_digests(&scan(&store, &all()).await), digests(&keys));
    assert!(first_page(&store, &all()).await.busy > Duration::ZERO);

    let states = [State::Processing, State::Retrying, State::Completed, State::Failed];
    for (n, state) in states.into_iter().enumerate() {
        let found = scan(&store, &all().with_state(state)).await;
        let expected: Vec<_> = keys.iter().skip(n).step_by(4).cloned().collect();
        assert_eq!(found_digests(&found), digests(&expected), "{state:?}");
        // The same as that of a single key.
        let of_first = &found[expected[0].digest()];
        assert_eq!(*of_first, store.inspect(&expected[0]).await.unwrap().found);
    }
    let unfinished = all().with_state(State::Processing).with_state(State::Retrying);
    assert_eq!(scan(&store, &unfinished).await.len(), 600);
}

#[tokio::test]
async fn scan_selects_by_age() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let keys = keys(10);
    store_entries(&store, &keys).await;
    let (now, _): (u32, u32) = redis::cmd("TIME").query(&mut raw).unwrap();
    for key in &keys[..3] {
        let created = (now - 3_600).to_be_bytes();
        redis::cmd("SETRANGE").arg(redis_key(key)).arg(32).arg(&created).exec(&mut raw).unwrap();
    }
    let filter = all().with_min_age(Duration::from_secs(3_600));
    assert_eq!(found_digests(&scan(&store, &filter).await), digests(&keys[..3]));
    let filter = filter.with_state(State::Completed);
    assert_eq!(found_digests(&scan(&store, &filter).await), digests(&keys[2..3]));
}

#[tokio::test]
async fn scan_skips_what_is_not_of_the_namespace() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let keys = keys(8);
    store_entries(&store, &keys).await;
    // Other namespaces: a prefix of this one, and longer ones.
    for other in ["test", "testsx", "tests.a", "tests-00"] {
        let namespace = Namespace::try_from(other).unwrap();
        let key = StoreKey::new(namespace, &IdempotencyKey::new("key").unwrap());
        acquire_lock(&store, &key, 1).await;
    }
    let entry: Vec<u8> = redis::cmd("GET").arg(redis_key(&keys[0])).query(&mut raw).unwrap();
    let mut other_bucket = redis_key(&keys[0]);
    let place = NAMESPACE.len() + 3;
    other_bucket[place] = if other_bucket[place] == b'0' { b'1' } else { b'0' };
    let mut longer = redis_key(&keys[0]);
    longer.push(b'x');
    let shorter = redis_key(&keys[0])[..20].to_vec();
    for name in [other_bucket, longer, shorter, b"{tests:00}wait".to_vec(), b"{tests:0".to_vec()] {
        redis::cmd("SET").arg(name).arg(&entry).exec(&mut raw).unwrap();
    }
    assert_eq!(found_digests(&scan(&store, &all()).await), digests(&keys));

    // Nor what has expired.
    let expired = redis_key(&keys[0]);
    redis::cmd("PEXPIRE").arg(&expired).arg(1).exec(&mut raw).unwrap();
    let is_gone = || {
        let exists: bool = redis::cmd("EXISTS").arg(&expired).query(&mut raw).unwrap();
        (!exists).then_some(())
    };
    eventually(Duration::from_secs(20), is_gone).unwrap();
    assert_eq!(found_digests(&scan(&store, &all()).await), digests(&keys[1..]));
}

#[tokio::test]
async fn scan_reports_what_is_no_entry_whatever_is_selected() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let keys = keys(5);
    let [empty, short, list, version, good] = &keys[..] else { unreachable!() };
    acquire_lock(&store, good, 1).await;
    let mut newer: Vec<u8> = redis::cmd("GET").arg(redis_key(good)).query(&mut raw).unwrap();
    newer[0] += 1;
    for (key, value) in [(empty, &b""[..]), (short, b"short"), (version, &newer)] {
        redis::cmd("SET").arg(redis_key(key)).arg(value).exec(&mut raw).unwrap();
    }
    redis::cmd("LPUSH").arg(redis_key(list)).arg("x").exec(&mut raw).unwrap();
    for filter in [all().with_state(State::Failed), all().with_state(State::Processing), all()] {
        let mut found = scan(&store, &filter).await;
        let good = found.remove(good.digest());
        assert_eq!(good.is_some(), filter.states() != [State::Failed], "{filter:?}");
        assert_eq!(found_digests(&found), digests(&keys[..4]), "{filter:?}");
        assert!(found.values().all(|found| matches!(found, Found::Unreadable { .. })), "{found:?}");
    }
}

/// `SCAN` guarantees this only for keys that exist during the whole scan, also while its table is
/// resized.
#[tokio::test]
async fn entries_are_seen_while_others_are_written_and_deleted() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let keys = keys(3_000);
    store_entries(&store, &keys).await;
    let mut others: Vec<StoreKey> = Vec::new();
    let (mut seen, mut cursor, mut pages) = (BTreeSet::new(), Some(ScanCursor::default()), 0);
    while let Some(at) = cursor {
        let page = store.scan(&all(), &at).await.unwrap();
        assert!(page.entries.len() < 1_000, "a page is bounded: {}", page.entries.len());
        seen.extend(page.entries.iter().map(|(key, _)| *key.digest()));
        cursor = page.next;
        pages += 1;
        for other in others.drain(..) {
            redis::cmd("DEL").arg(redis_key(&other)).exec(&mut raw).unwrap();
        }
        if pages % 2 == 1 && pages < 10 {
            others.extend((0..3_000).map(|n| key(format!("other {pages} {n}"))));
            store_entries(&store, &others).await;
        }
    }
    assert!(digests(&keys).is_subset(&seen), "of {pages} pages");
}

#[tokio::test]
async fn foreign_cursor_is_refused() {
    let (_server, store) = server_and_store().await;
    for foreign in [&b"x"[..], &[0xff; 16], &[0xff; 18]] {
        let error = store.scan(&all(), &ScanCursor::from_bytes(foreign)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreadable);
        assert!(chain(&error).contains("start the scan without a cursor"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn scan_must_be_started_again_after_server_restart() {
    let (mut server, store) = server_and_store().await;
    store_entries(&store, &keys(2_000)).await;
    let cursor = first_page(&store, &all()).await.next.unwrap();
    assert!(store.scan(&all(), &cursor).await.is_ok());
    server.kill().unwrap();
    server.restart().unwrap();
    let error = store.scan(&all(), &cursor).await.unwrap_err();
    assert!(chain(&error).contains("start the scan again"), "{}", chain(&error));
    assert!(scan(&store, &all()).await.is_empty());
}

#[tokio::test]
async fn scan_covers_all_masters_of_a_cluster() {
    let cluster = RedisCluster::start().unwrap();
    let store = RedisStore::connect(crate::cluster::long_timeout(&cluster)).await.unwrap();
    let keys = keys(1_200);
    store_entries(&store, &keys).await;
    let on = |node: usize| {
        let raw = &mut raw_connection(cluster.node(node));
        redis::cmd("DBSIZE").query::<usize>(raw).unwrap()
    };
    assert!((0..3).all(|node| on(node) > 100), "every master has entries");
    assert_eq!(found_digests(&scan(&store, &all()).await), digests(&keys));
    let failed = scan(&store, &all().with_state(State::Failed)).await;
    assert_eq!(failed.len(), 300);
}

#[tokio::test]
async fn scan_of_cluster_sees_slot_that_is_being_moved() {
    let mut cluster = RedisCluster::start().unwrap();
    let store = RedisStore::connect(crate::cluster::long_timeout(&cluster)).await.unwrap();
    let keys = keys(400);
    let (old, new) = keys.split_at(200);
    store_entries(&store, old).await;
    let slot = crate::cluster::slot(&cluster, &keys[0]);
    let to = (cluster.owner_of(slot).unwrap() + 1) % 3;
    let start = first_page(&store, &all()).await;
    cluster.begin_move(slot, to).unwrap();
    // Those in the slot are stored by the new master.
    store_entries(&store, new).await;
    assert_eq!(found_digests(&scan(&store, &all()).await), digests(&keys));
    assert_eq!(scan(&store, &all().with_state(State::Failed)).await.len(), 100);

    cluster.end_move(slot, to).unwrap();
    let mut page = Ok(start);
    let error = loop {
        match page {
            Ok(ScanPage { next: Some(cursor), .. }) => page = store.scan(&all(), &cursor).await,
            Ok(_) => panic!("the end of a scan that may have missed entries"),
            Err(error) => break error,
        }
    };
    assert!(chain(&error).contains("start the scan again"), "{}", chain(&error));
    assert_eq!(found_digests(&scan(&store, &all()).await), digests(&keys));
}
