//! Redis out of memory, and the memory that an entry takes.

use std::time::Duration;

use campanile_core::{Details, IdempotencyKey, Operation, Reply, State, TraceContext};
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::RedisStore;

use crate::support::{
    acquire, acquire_lock, apply, chain, command, complete, grant, key, long_timeout, owner,
    raw_connection, redis_key, replies, server_and_store,
};

const LATER: Duration = Duration::from_secs(60);

#[tokio::test]
async fn out_of_memory_refuses_only_acquires_that_write() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let [done, locked, own, far, late, due] =
        ["done", "locked", "own", "far", "late", "due"].map(key);
    let grant = acquire_lock(&store, &done, 1).await;
    apply(&store, &done, complete(grant, "done")).await.unwrap();
    acquire_lock(&store, &locked, 1).await;
    acquire_lock(&store, &own, 1).await;
    acquire_lock(&store, &far, 1).await;
    // As after the clock went back: the lock ends later than any client could have asked for.
    let far_away = (u64::MAX / 2).to_be_bytes();
    redis::cmd("SETRANGE").arg(redis_key(&far)).arg(36).arg(&far_away).exec(&mut raw).unwrap();
    for (key, delay) in [(&late, LATER), (&due, Duration::ZERO)] {
        let grant = acquire_lock(&store, key, 1).await;
        let fail = Operation::Fail { grant, delay, last: false, error: "error".into() };
        assert_eq!(apply(&store, key, fail).await.unwrap(), Reply::Retrying);
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();

    let mut longer = acquire(1);
    if let Operation::Acquire { ttl, .. } = &mut longer {
        *ttl = LATER;
    }
    let batch = vec![
        command(&key("new"), acquire(2)),
        command(&done, acquire(2)),
        command(&locked, acquire(2)),
        command(&own, longer),
        command(&far, acquire(2)),
        command(&late, acquire(2)),
        command(&due, acquire(2)),
    ];
    let answers = store.apply_batch(batch).await;
    let refused: Vec<usize> = (0..answers.len()).filter(|&n| answers[n].is_err()).collect();
    assert_eq!(refused, [0, 3, 6], "a first grant, an extension, a grant: {answers:?}");
    for n in refused {
        let error = answers[n].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(chain(error).contains("OOM") && chain(error).contains("maxmemory"), "{error}");
    }
    let reply = |n: usize| answers[n].as_ref().unwrap().reply.clone();
    assert!(matches!(reply(1), Reply::Duplicate { reply: Some(reply), .. } if reply == "done"));
    assert!(matches!(reply(2), Reply::Locked { .. }));
    let clamped = Duration::from_secs(3600);
    assert_eq!(reply(4), Reply::Locked { remaining: clamped }, "answered as if it were written");
    let stored: Vec<u8> = redis::cmd("GET").arg(redis_key(&far)).query(&mut raw).unwrap();
    assert_eq!(stored[36..44], far_away, "the clamped time should not be written");
    assert!(matches!(reply(5), Reply::BackingOff { .. }));
}

#[tokio::test]
async fn out_of_memory_locks_are_still_renewed_and_settled() {
    let (server, store) = server_and_store().await;
    let mut commands = Vec::new();
    let mut expected = Vec::new();
    for (n, reply) in [
        Reply::Renewed,
        Reply::Completed,
        Reply::Retrying,
        Reply::Released,
        Reply::Released,
        Reply::GivenUp,
    ]
    .into_iter()
    .enumerate()
    {
        let key = key(n.to_string());
        let grant = acquire_lock(&store, &key, 1).await;
        commands.push(command(
            &key,
            match n {
                0 => Operation::Renew { grant, ttl: LATER },
                1 => complete(grant, "done"),
                2 => Operation::Fail { grant, delay: LATER, last: true, error: "error".into() },
                3 => Operation::Release { grant, ran: true },
                4 => Operation::Cancel { owner: grant.owner },
                _ => Operation::GiveUp { grant, reason: "reason".into() },
            },
        ));
        expected.push(reply);
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    assert_eq!(replies(store.apply_batch(commands).await), expected);
}

#[tokio::test]
async fn client_started_out_of_memory_answers_duplicates() {
    let (server, store) = server_and_store().await;
    let key = key("key");
    let grant = acquire_lock(&store, &key, 1).await;
    apply(&store, &key, complete(grant, "done")).await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();

    let another = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let reply = apply(&another, &key, acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Duplicate { .. }));
    let renew = Operation::Renew { grant, ttl: LATER };
    assert_eq!(apply(&another, &key, renew).await.unwrap(), Reply::Settled(State::Completed));
}

#[tokio::test]
async fn entry_without_tail_is_embedded_in_one_allocation() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let key = key("x".repeat(57));
    let grant = acquire_lock(&store, &key, 1).await;
    let embedded = |raw: &mut redis::Connection| {
        let name = redis_key(&key);
        let encoding: String = redis::cmd("OBJECT").arg("ENCODING").arg(&name).query(raw).unwrap();
        let memory: u64 = redis::cmd("MEMORY").arg("USAGE").arg(&name).query(raw).unwrap();
        println!("a key of {} bytes: {encoding}, MEMORY USAGE {memory}", name.len());
        encoding == "embstr"
    };
    assert!(embedded(&mut raw), "PROCESSING");
    let completed =
        Operation::Complete { grant, attempt: 1, fingerprint: None, reply: None, details: None };
    assert_eq!(apply(&store, &key, completed).await.unwrap(), Reply::Completed);
    assert!(embedded(&mut raw), "COMPLETED");
}

/// The guide's figures of the memory of details are about such an entry.
#[tokio::test]
async fn typical_details_add_at_most_150_bytes() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let key = key("key");
    let mut memory = || -> i64 {
        redis::cmd("MEMORY").arg("USAGE").arg(redis_key(&key)).query(&mut raw).unwrap()
    };
    let details = Details::builder(owner(1))
        .key(&IdempotencyKey::new("4bf92f35-77b3-4da6-a3ce-929d0e0e4736").unwrap())
        .instance("billing-7d4f9c6b5-x2x7q/17")
        .coordinates(&"payments/3@42".parse().unwrap())
        .trace(&TraceContext::new(1, 2, 1).unwrap())
        .build();
    let mut operation = acquire(1);
    let Operation::Acquire { details: given, .. } = &mut operation else { unreachable!() };
    *given = Some(details.clone());
    let reply = apply(&store, &key, operation).await.unwrap();
    let Reply::Acquired { token, .. } = reply else { panic!("{reply:?}") };
    let processing = memory();
    let grant = grant(token, 1);
    let completed =
        Operation::Complete { grant, attempt: 1, fingerprint: None, reply: None, details: None };
    assert_eq!(apply(&store, &key, completed).await.unwrap(), Reply::Completed);
    let added = processing - memory();
    assert!((100..=150).contains(&added), "{} bytes add {added}", details.as_bytes().len());
}
