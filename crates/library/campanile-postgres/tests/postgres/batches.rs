//! Batches of several commands.

use std::time::Duration;

use campanile_core::{
    Command, FencingToken, IdempotencyKey, Namespace, Operation, Reply, StoreKey,
};
use campanile_idempotency::Store;
use campanile_test::eventually;
use fastrand::Rng;

use crate::support::{
    Database, acquire, acquire_grant, apply, command, complete, grant, key, owner, replies,
};

#[tokio::test]
async fn batch_of_all_kinds_and_namespaces_is_answered_in_order() {
    let database = Database::new().await;
    let store = database.store().await;
    let keys: Vec<_> = (0..6).map(|n| key(n.to_string())).collect();
    let mut held = Vec::new();
    for key in &keys {
        held.push(acquire_grant(&store, key, 1).await);
    }
    let elsewhere =
        StoreKey::new(Namespace::try_from("another").unwrap(), &IdempotencyKey::new("0").unwrap());
    let ttl = Duration::from_secs(60);
    let fail = Operation::Fail { grant: held[2], delay: ttl, last: false, error: "no".into() };
    let batch = vec![
        command(&keys[0], complete(held[0], b"done")),
        command(&elsewhere, acquire(7)),
        command(&keys[1], Operation::Renew { grant: held[1], ttl }),
        command(&keys[2], fail),
        command(&keys[3], Operation::Release { grant: held[3], ran: true }),
        command(&keys[4], Operation::GiveUp { grant: held[4], reason: "no".into() }),
        command(&keys[5], Operation::Cancel { owner: owner(1) }),
        command(&key("new"), acquire(1)),
    ];
    let answers = replies(store.apply_batch(batch).await);
    assert!(
        matches!(
            &answers[..],
            [
                Reply::Completed,
                Reply::Acquired { attempt: 1, .. },
                Reply::Renewed,
                Reply::Retrying,
                Reply::Released,
                Reply::GivenUp,
                Reply::Released,
                Reply::Acquired { attempt: 1, .. },
            ]
        ),
        "{answers:?}"
    );
}

/// Draws random commands, on keys in random order.
fn random_batch(rng: &mut Rng, keys: &[StoreKey], floor: FencingToken) -> Vec<Command> {
    let mut keys = keys.to_vec();
    rng.shuffle(&mut keys);
    keys.truncate(rng.usize(1..=keys.len()));
    // Mostly one kind of operation, so that many commands share a call.
    let kind = rng.u8(..6);
    let operation = |rng: &mut Rng| {
        let held = grant(floor, rng.u64(1..4));
        match kind {
            0..=2 => Operation::Acquire {
                owner: held.owner,
                ttl: Duration::ZERO,
                max_attempts: 0,
                fingerprint: None,
                floor: FencingToken::ZERO,
                details: None,
            },
            3 => Operation::Cancel { owner: held.owner },
            4 => complete(held, b"done"),
            _ => Operation::Redrive { token: held.token, force: true },
        }
    };
    keys.iter().map(|key| command(key, operation(rng))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_with_keys_in_any_order_never_deadlock() {
    const TASKS: u64 = 6;
    const BATCHES: usize = 150;
    let database = Database::new().await;
    let seed = crate::support::env_number("CAMPANILE_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("CAMPANILE_SEED={seed}");
    let store = database.store().await;
    let run = |task: u64| {
        let store = store.clone();
        async move {
            let mut rng = Rng::with_seed(seed.wrapping_add(task));
            for round in 0..BATCHES {
                // Use new keys from time to time, so that several tasks insert them at the same
                // time.
                let keys: Vec<_> = (0..24).map(|n| key(format!("{} {n}", round / 10))).collect();
                for answer in
                    store.apply_batch(random_batch(&mut rng, &keys, FencingToken::ZERO)).await
                {
                    answer.unwrap();
                }
            }
        }
    };
    let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(run(task))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    // A session reports its statistics when it ends, at the latest.
    drop(store);
    let name = database.name();
    let sessions = format!("SELECT numbackends FROM pg_stat_database WHERE datname = '{name}'");
    let has_no_sessions = || (database.psql_on_server(&sessions) == "0").then_some(());
    eventually(Duration::from_secs(30), has_no_sessions).expect("the store's sessions end");
    let deadlocks = format!("SELECT deadlocks FROM pg_stat_database WHERE datname = '{name}'");
    assert_eq!(database.psql_on_server(&deadlocks), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_renewals_and_completions_are_all_applied() {
    const ROUNDS: usize = 40;
    let database = Database::new().await;
    let store = database.store().await;
    for round in 0..ROUNDS {
        let keys: Vec<_> = (0..16).map(|n| key(format!("{round} {n}"))).collect();
        let batch = keys.iter().map(|key| command(key, acquire(1))).collect();
        let held: Vec<_> = replies(store.apply_batch(batch).await)
            .into_iter()
            .map(|reply| match reply {
                Reply::Acquired { token, .. } => grant(token, 1),
                other => panic!("not acquired: {other:?}"),
            })
            .collect();
        let renewals = |seconds| {
            let pairs = keys.iter().zip(&held).rev();
            let ttl = Duration::from_secs(seconds);
            let renew = |(key, &grant)| command(key, Operation::Renew { grant, ttl });
            let (store, batch) = (store.clone(), pairs.map(renew).collect());
            tokio::spawn(async move { store.apply_batch(batch).await })
        };
        let completions = {
            let pairs = keys.iter().zip(&held);
            let batch = pairs.map(|(key, &grant)| command(key, complete(grant, b"done"))).collect();
            let store = store.clone();
            tokio::spawn(async move { store.apply_batch(batch).await })
        };
        let renewals = [renewals(40), renewals(50), renewals(60)];
        assert!(replies(completions.await.unwrap()).iter().all(|reply| *reply == Reply::Completed));
        for renewed in renewals {
            let completed = Reply::Settled(campanile_core::State::Completed);
            for reply in replies(renewed.await.unwrap()) {
                assert!(reply == Reply::Renewed || reply == completed, "{reply:?}");
            }
        }
        for key in &keys {
            let reply = apply(&store, key, acquire(2)).await.unwrap();
            assert!(matches!(reply, Reply::Duplicate { reply: Some(_), .. }), "{reply:?}");
        }
    }
}

#[tokio::test]
async fn keys_replies_and_errors_may_be_any_bytes() {
    let database = Database::new().await;
    let store = database.store().await;
    for name in [&b"\0"[..], b"\xff\xfe\0a'\"\\;", "鐘\0".as_bytes()] {
        let key = key(name);
        let held = acquire_grant(&store, &key, 1).await;
        let fail = Operation::Fail {
            grant: held,
            delay: Duration::ZERO,
            last: true,
            error: "no\0 'such'\\ 鐘".into(),
        };
        assert_eq!(apply(&store, &key, fail).await.unwrap(), Reply::Retrying);
        let Reply::Exhausted { token, last_error, .. } =
            apply(&store, &key, acquire(2)).await.unwrap()
        else {
            panic!("the key is not exhausted");
        };
        assert_eq!(last_error.as_deref(), Some("no\0 'such'\\ 鐘"));
        let reply = b"\0\xff{}\\x00'";
        apply(&store, &key, complete(grant(token, 2), reply)).await.unwrap();
        let Reply::Duplicate { reply: kept, .. } = apply(&store, &key, acquire(3)).await.unwrap()
        else {
            panic!("the key is not completed");
        };
        assert_eq!(kept.as_deref(), Some(&reply[..]));
    }
}
