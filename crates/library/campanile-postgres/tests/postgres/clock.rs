//! A database's clock that is set ahead or back.

use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL};
use campanile_core::{Grant, Operation, Reply, Retention};

use crate::support::{Database, acquire, acquire_grant, apply, complete, key};

const HOUR: u64 = 3600;

/// Changes the clock of the database's functions. Several changes add up.
fn step_clock(database: &Database, change: &str) {
    let change = change.replace('\'', "''");
    database.psql(&format!(
        "DO $do$ DECLARE f record; BEGIN FOR f IN SELECT pg_get_functiondef(oid) AS text \
         FROM pg_proc WHERE pronamespace = 'campanile'::regnamespace LOOP \
         EXECUTE replace(f.text, 'clock_timestamp()', '(clock_timestamp() {change})'); \
         END LOOP; END $do$",
    ));
}

fn fail(grant: Grant, delay: Duration) -> Operation {
    Operation::Fail { grant, delay, last: false, error: "no".into() }
}

#[tokio::test]
async fn clock_step_ahead_ends_lock_and_refuses_its_holder() {
    let database = Database::new().await;
    let store = database.store().await;
    let (held, waiting) = (key("held"), key("waiting"));
    let first = acquire_grant(&store, &held, 1).await;
    let failed = acquire_grant(&store, &waiting, 1).await;
    apply(&store, &waiting, fail(failed, MAX_BACKOFF)).await.unwrap();
    // A step of less than the TTL, which is 30 s, shortens the lock.
    step_clock(&database, "+ interval '10 seconds'");
    let reply = apply(&store, &held, acquire(2)).await.unwrap();
    let Reply::Locked { remaining } = reply else { panic!("{reply:?}") };
    assert!(remaining <= Duration::from_secs(20), "{remaining:?}");

    step_clock(&database, "+ interval '2 hours'");
    let second = acquire_grant(&store, &held, 2).await;
    assert!(second.token > first.token);
    let ttl = Duration::from_secs(30);
    for late in [Operation::Renew { grant: first, ttl }, complete(first, b"late")] {
        assert_eq!(apply(&store, &held, late).await.unwrap(), Reply::Lost);
    }
    let reply = apply(&store, &held, complete(second, b"done")).await.unwrap();
    assert_eq!(reply, Reply::Completed);
    // The backoff, of a day, has two hours less.
    let reply = apply(&store, &waiting, acquire(2)).await.unwrap();
    let Reply::BackingOff { remaining, .. } = reply else { panic!("{reply:?}") };
    assert!(remaining <= MAX_BACKOFF - Duration::from_secs(2 * HOUR), "{remaining:?}");
    step_clock(&database, "+ interval '22 hours'");
    acquire_grant(&store, &waiting, 2).await;
}

#[tokio::test]
async fn clock_step_ahead_ends_retention_and_tokens_rise() {
    let database = Database::new().await;
    let store = database.store().await;
    let key = key("done");
    let before = acquire_grant(&store, &key, 1).await;
    apply(&store, &key, complete(before, b"done")).await.unwrap();
    let retention = Retention::default().completed.as_secs();
    step_clock(&database, &format!("+ interval '{} seconds'", retention - HOUR));
    let reply = apply(&store, &key, acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Duplicate { .. }), "{reply:?}");
    step_clock(&database, "+ interval '2 hours'");
    let reply = apply(&store, &key, acquire(2)).await.unwrap();
    let Reply::Acquired { token, attempt: 1, .. } = reply else { panic!("{reply:?}") };
    assert!(token > before.token);
}

#[tokio::test]
async fn clock_set_back_bounds_locks_and_repeats_no_token() {
    let database = Database::new().await;
    let store = database.store().await;
    let (held, waiting) = (key("held"), key("waiting"));
    let before = acquire_grant(&store, &held, 1).await;
    let failed = acquire_grant(&store, &waiting, 1).await;
    apply(&store, &waiting, fail(failed, Duration::from_secs(1))).await.unwrap();
    step_clock(&database, "- interval '7 days'");
    let Reply::Locked { remaining } = apply(&store, &held, acquire(2)).await.unwrap() else {
        panic!("the key is not locked");
    };
    assert_eq!(remaining, MAX_LOCK_TTL);
    let Reply::BackingOff { remaining, .. } = apply(&store, &waiting, acquire(2)).await.unwrap()
    else {
        panic!("the key is not backing off");
    };
    assert_eq!(remaining, MAX_BACKOFF);
    let release = Operation::Release { grant: before, ran: true };
    assert_eq!(apply(&store, &held, release).await.unwrap(), Reply::Released);
    let after = acquire_grant(&store, &held, 2).await;
    assert!(after.token > before.token);
    let reply = apply(&store, &held, complete(before, b"late")).await.unwrap();
    assert_eq!(reply, Reply::Lost);
    let reply = apply(&store, &held, complete(after, b"done")).await.unwrap();
    assert_eq!(reply, Reply::Completed);
}
