//! A server that does not have the scripts cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use campanile_core::{Operation, Reply};
use campanile_idempotency::Store;

use crate::support::{
    acquire, acquire_lock, apply, command, complete, key, raw_connection, replies, server_and_store,
};

#[tokio::test]
async fn script_flush_resends_every_script() {
    let (server, store) = server_and_store().await;
    let (first, second) = (key("first"), key("second"));
    let flush = || server.cli(&["SCRIPT", "FLUSH"]).unwrap();

    flush();
    let grant = acquire_lock(&store, &first, 1).await;
    let ttl = Duration::from_secs(60);
    for (operation, expected) in [
        (Operation::Renew { grant, ttl }, Reply::Renewed),
        (Operation::GiveUp { grant, reason: "reason".into() }, Reply::GivenUp),
        (Operation::Redrive { token: grant.token, force: false }, Reply::Reopened),
    ] {
        flush();
        assert_eq!(apply(&store, &first, operation).await.unwrap(), expected);
    }
    for settle in [
        |grant| Operation::Fail { grant, delay: Duration::ZERO, last: false, error: "e".into() },
        |grant| Operation::Release { grant, ran: false },
        |grant| complete(grant, "done"),
    ] {
        let grant = acquire_lock(&store, &second, fastrand::u64(1..)).await;
        flush();
        let reply = apply(&store, &second, settle(grant)).await.unwrap();
        assert!(matches!(reply, Reply::Retrying | Reply::Released | Reply::Completed), "{reply:?}");
    }
    flush();
    let owner = crate::support::owner(9);
    let reply = apply(&store, &key("third"), Operation::Cancel { owner }).await.unwrap();
    assert_eq!(reply, Reply::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn script_flush_under_load_causes_no_error_or_attempt() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let (stop, has_flushed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (stopped, flushed) = (Arc::clone(&stop), Arc::clone(&has_flushed));
    let flushing = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut raw).unwrap();
            flushed.store(true, Ordering::Relaxed);
        }
    });
    // A busy machine may run the thread late.
    let has_load = |round: &u32| *round < 100 || !has_flushed.load(Ordering::Relaxed);
    for round in (0..).take_while(has_load) {
        let keys: Vec<_> = (0..8).map(|n| key(format!("{round}/{n}"))).collect();
        let acquires = keys.iter().map(|key| command(key, acquire(1))).collect();
        for reply in replies(store.apply_batch(acquires).await) {
            assert!(matches!(reply, Reply::Acquired { attempt: 1, .. }), "{reply:?}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    flushing.join().unwrap();
}
