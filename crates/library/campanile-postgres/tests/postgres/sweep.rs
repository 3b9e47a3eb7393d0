//! Expired entries.

use std::time::Duration;

use campanile_core::{Command, Operation, Reply, Retention};
use campanile_idempotency::Store;
use campanile_postgres::PgStore;

use crate::support::{Database, acquire, acquire_grant, apply, command, complete, key, replies};

const SHORT_RETENTION: Retention = Retention {
    attempts: Duration::from_millis(1),
    completed: Duration::from_millis(1),
    failed: Duration::from_millis(1),
};

/// Moves the expiry of all entries back by an hour.
fn advance_one_hour(database: &Database) {
    database.psql("UPDATE campanile.entry SET expires_at = expires_at - interval '1 hour'");
}

#[tokio::test]
async fn sweep_deletes_exactly_the_expired_entries() {
    const ENTRIES: usize = 3_000;
    let database = Database::new().await;
    let store = database.store().await;
    for chunk in 0..ENTRIES / 50 {
        let commands = (0..50).map(|n| {
            let key = key(format!("{chunk} {n}"));
            let retention = if n % 3 == 0 { Retention::default() } else { SHORT_RETENTION };
            Command { key, operation: acquire(1), retention }
        });
        replies(store.apply_batch(commands.collect()).await);
    }
    // Another call may have just found these entries absent, so they are not swept yet.
    assert_eq!(store.sweep().await.unwrap(), 0);
    advance_one_hour(&database);
    let kept = ENTRIES / 50 * 17;
    assert_eq!(store.sweep().await.unwrap(), (ENTRIES - kept) as u64);
    assert_eq!(database.psql("SELECT count(*) FROM campanile.entry"), kept.to_string());
    assert_eq!(store.sweep().await.unwrap(), 0);
}

#[tokio::test]
async fn calls_of_sweep_continue_at_the_page_where_the_last_one_ended() {
    let database = Database::new().await;
    let store = database.store().await;
    for chunk in 0..20 {
        let commands = (0..50).map(|n| {
            let key = key(format!("{chunk} {n}"));
            Command { key, operation: acquire(1), retention: SHORT_RETENTION }
        });
        replies(store.apply_batch(commands.collect()).await);
    }
    advance_one_hour(&database);
    // What the updates have left behind fills pages of its own.
    database.psql("VACUUM FULL campanile.entry");
    let (mut next, mut deleted) = (Some(0), Vec::new());
    while let Some(first) = next {
        let swept =
            database.psql(&format!("SELECT deleted, next FROM campanile.sweep({first}, 1)"));
        let (count, after) = swept.split_once('|').unwrap();
        deleted.push(count.parse::<u64>().unwrap());
        assert_ne!(after, first.to_string());
        next = (!after.is_empty()).then(|| after.parse::<i64>().unwrap());
    }
    assert!(deleted.len() > 5 && deleted.iter().all(|count| *count < 500), "{deleted:?}");
    assert_eq!(deleted.iter().sum::<u64>(), 1_000);
}

#[tokio::test]
async fn store_in_use_sweeps_by_itself_unless_disabled() {
    let database = Database::new().await;
    let config = database.config().with_sweep_interval(Duration::from_millis(10));
    let unswept_store = PgStore::connect(config.clone().without_sweeping()).await.unwrap();
    let command =
        |name| Command { key: key(name), operation: acquire(1), retention: SHORT_RETENTION };
    replies(vec![unswept_store.apply(command("over")).await]);
    advance_one_hour(&database);
    let store = PgStore::connect(config).await.unwrap();
    assert_eq!(database.psql("SELECT count(*) FROM campanile.entry"), "1");
    replies(vec![store.apply(command("another")).await]);
    let swept = async {
        while database.psql("SELECT count(*) FROM campanile.entry") != "1" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), swept).await.expect("the store sweeps");
    // A dropped store stops sweeping. Its sessions end after a pass that is in progress.
    drop(store);
    let only_the_other_store_is_connected = "SELECT count(*) = 1 FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() \
         AND backend_type = 'client backend'";
    database.wait_for(only_the_other_store_is_connected).await;
    advance_one_hour(&database);
    assert_eq!(unswept_store.sweep().await.unwrap(), 1);
}

#[tokio::test]
async fn sweep_skips_locked_rows() {
    let database = Database::new().await;
    let store = database.store().await;
    for name in ["held", "free"] {
        let command = Command { key: key(name), operation: acquire(1), retention: SHORT_RETENTION };
        replies(vec![store.apply(command).await]);
    }
    advance_one_hour(&database);
    let other = database.client().await;
    let held = key("held");
    other.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT FROM campanile.entry WHERE key = $1 FOR UPDATE";
    other.execute(lock, &[&&held.digest()[..]]).await.unwrap();
    assert_eq!(store.sweep().await.unwrap(), 1);
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.sweep().await.unwrap(), 1);
}

#[tokio::test]
async fn only_one_session_sweeps_at_a_time() {
    let database = Database::new().await;
    let store = database.store().await;
    let command = Command { key: key("key"), operation: acquire(1), retention: SHORT_RETENTION };
    replies(vec![store.apply(command).await]);
    advance_one_hour(&database);
    let other = database.client().await;
    let lock = "BEGIN; SELECT pg_advisory_xact_lock('campanile.entry'::regclass::oid::bigint)";
    other.batch_execute(lock).await.unwrap();
    assert_eq!(store.sweep().await.unwrap(), 0);
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(store.sweep().await.unwrap(), 1);
}

#[tokio::test]
async fn expired_entry_counts_as_absent_before_it_is_swept() {
    let database = Database::new().await;
    let store = database.store().await;
    let (taken, adopted) = (key("taken"), key("adopted"));
    let first = acquire_grant(&store, &taken, 1).await;
    let held = acquire_grant(&store, &adopted, 1).await;
    let fail =
        Operation::Fail { grant: first, delay: Duration::ZERO, last: true, error: "no".into() };
    assert_eq!(apply(&store, &taken, fail).await.unwrap(), Reply::Retrying);
    database.psql("UPDATE campanile.entry SET expires_at = clock_timestamp()");

    let renew = Operation::Renew { grant: held, ttl: Duration::from_secs(30) };
    assert_eq!(apply(&store, &adopted, renew).await.unwrap(), Reply::Lost);
    let Reply::Acquired { token, attempt: 1, .. } =
        apply(&store, &taken, acquire(2)).await.unwrap()
    else {
        panic!("not acquired as a new entry");
    };
    assert!(token > first.token);
    let reply = apply(&store, &adopted, complete(held, b"done")).await.unwrap();
    assert_eq!(reply, Reply::Completed);
    let answer = store.apply(command(&adopted, acquire(3))).await.unwrap();
    assert!(matches!(answer.reply, Reply::Duplicate { attempt: 1, .. }), "{answer:?}");
}
