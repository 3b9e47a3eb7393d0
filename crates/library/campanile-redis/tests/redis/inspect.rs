//! Reading the entry of a key.

use std::time::{Duration, SystemTime};

use campanile_core::{Details, Entry, Operation, State, StoreKey};
use campanile_idempotency::{Found, InspectStore, StoreErrorKind};
use campanile_redis::RedisStore;

use crate::support::{
    acquire, acquire_lock, apply, chain, complete, key, long_timeout, owner, raw_connection,
    redis_key, server_and_store,
};

async fn entry(store: &RedisStore, key: &StoreKey) -> Entry {
    match store.inspect(key).await.unwrap().found {
        Found::Entry { entry, .. } => entry,
        other => panic!("no entry: {other:?}"),
    }
}

fn details() -> Details {
    Details::builder(owner(1)).instance("host/1").build()
}

#[tokio::test]
async fn inspect_returns_entry_in_every_state() {
    let (_server, store) = server_and_store().await;
    let key = key("key");
    assert_eq!(store.inspect(&key).await.unwrap().found, Found::Absent);

    let mut operation = acquire(1);
    let Operation::Acquire { details: given, .. } = &mut operation else { unreachable!() };
    *given = Some(details());
    apply(&store, &key, operation).await.unwrap();
    let held = entry(&store, &key).await;
    assert_eq!((held.state(), held.details()), (State::Processing, Some(&details())));

    let grant = crate::support::grant(held.token(), 1);
    let fail = Operation::Fail { grant, delay: Duration::ZERO, last: true, error: "oh".into() };
    apply(&store, &key, fail).await.unwrap();
    let failed = entry(&store, &key).await;
    assert_eq!((failed.state(), failed.details()), (State::Retrying, Some(&details())));
    assert_eq!(failed.error().as_deref(), Some("oh"));

    let grant = match apply(&store, &key, acquire(2)).await.unwrap() {
        campanile_core::Reply::Exhausted { token, .. } => crate::support::grant(token, 2),
        other => panic!("{other:?}"),
    };
    assert_eq!(entry(&store, &key).await.details(), Some(&details()), "no others were given");
    let give_up = Operation::GiveUp { grant, reason: "gave up".into() };
    apply(&store, &key, give_up).await.unwrap();
    let given_up = entry(&store, &key).await;
    assert_eq!((given_up.state(), given_up.details()), (State::Failed, Some(&details())));

    let redrive = Operation::Redrive { token: grant.token, force: false };
    apply(&store, &key, redrive).await.unwrap();
    let grant = acquire_lock(&store, &key, 3).await;
    apply(&store, &key, complete(grant, "done")).await.unwrap();
    let completed = entry(&store, &key).await;
    assert_eq!((completed.state(), completed.details()), (State::Completed, None));
    assert_eq!(completed.reply().map(|reply| &reply[..]), Some(&b"done"[..]));
}

#[tokio::test]
async fn inspect_reports_servers_time_and_expiry() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let key = key("key");
    acquire_lock(&store, &key, 1).await;
    let time = |raw: &mut redis::Connection| {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(raw).unwrap();
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    let before = time(&mut raw);
    let inspection = store.inspect(&key).await.unwrap();
    assert!(before <= inspection.now && inspection.now <= time(&mut raw), "{inspection:?}");

    let expiry: u64 = redis::cmd("PEXPIRETIME").arg(redis_key(&key)).query(&mut raw).unwrap();
    let Found::Entry { expires_at, .. } = inspection.found else { panic!("{inspection:?}") };
    assert_eq!(expires_at, SystemTime::UNIX_EPOCH + Duration::from_millis(expiry));

    // As after a restore without it.
    redis::cmd("PERSIST").arg(redis_key(&key)).exec(&mut raw).unwrap();
    let inspection = store.inspect(&key).await.unwrap();
    let Found::Entry { expires_at, .. } = inspection.found else { panic!("{inspection:?}") };
    assert!(expires_at > inspection.now + Duration::from_secs(1_000 * 365 * 86_400));
}

#[tokio::test]
async fn inspect_writes_nothing_and_reports_what_is_no_entry() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let (short, list) = (key("short"), key("list"));
    redis::cmd("SET").arg(redis_key(&short)).arg("secret").exec(&mut raw).unwrap();
    redis::cmd("LPUSH").arg(redis_key(&list)).arg("secret").exec(&mut raw).unwrap();
    let changes = || {
        let info = server.cli(&["INFO", "persistence"]).unwrap();
        let field = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        field.unwrap().to_owned()
    };
    let before = changes();
    for key in [&short, &list] {
        let found = store.inspect(key).await.unwrap().found;
        let Found::Unreadable { reason } = found else { panic!("{found:?}") };
        assert!(!reason.contains("secret") && !reason.is_empty(), "{reason}");
    }
    assert_eq!(store.inspect(&key("absent")).await.unwrap().found, Found::Absent);
    assert_eq!(changes(), before, "not even the bucket count of the namespace is written");
}

#[tokio::test]
async fn inspect_with_other_bucket_count_is_refused() {
    let (server, store) = server_and_store().await;
    acquire_lock(&store, &key("key"), 1).await;
    let other = RedisStore::connect(long_timeout(server.url()).with_buckets(32)).await.unwrap();
    let error = other.inspect(&key("key")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(chain(&error).contains("with_buckets(16)"), "{}", chain(&error));
}

#[tokio::test]
async fn inspect_of_hung_server_times_out() {
    let (server, _) = server_and_store().await;
    let store = RedisStore::connect(crate::support::short_timeout(server.url())).await.unwrap();
    server.cli(&["CLIENT", "PAUSE", "60000"]).unwrap();
    let error = store.inspect(&key("key")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
}

#[tokio::test]
async fn inspect_in_cluster_follows_slot_that_moves() {
    let mut cluster = campanile_test::RedisCluster::start().unwrap();
    let store = RedisStore::connect(crate::cluster::long_timeout(&cluster)).await.unwrap();
    let moved = key("key 0");
    acquire_lock(&store, &moved, 1).await;
    let slot = crate::cluster::slot(&cluster, &moved);
    let to = (cluster.owner_of(slot).unwrap() + 1) % 3;
    cluster.begin_move(slot, to).unwrap();
    // The first is still at the old master; another one of the slot has no entry at either.
    let another = (1..).map(|n| key(format!("key {n}")));
    let another = { another }.find(|key| crate::cluster::slot(&cluster, key) == slot).unwrap();
    assert_eq!(entry(&store, &moved).await.state(), State::Processing);
    assert_eq!(store.inspect(&another).await.unwrap().found, Found::Absent);
    acquire_lock(&store, &another, 1).await; // at the new master
    assert_eq!(entry(&store, &another).await.state(), State::Processing);
    cluster.end_move(slot, to).unwrap();
    assert_eq!(entry(&store, &moved).await.state(), State::Processing);
}
