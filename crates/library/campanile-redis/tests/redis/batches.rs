//! Tests of what a batch may contain.

use std::time::Duration;

use campanile_core::{FencingToken, Operation, Reply};
use campanile_idempotency::Store;

use crate::support::{
    acquire, acquire_lock, apply, command, complete, key, raw_connection, redis_key, replies,
    server_and_store,
};

#[tokio::test]
async fn batch_larger_than_one_call_is_answered_in_order() {
    let (_server, store) = server_and_store().await;
    let keys: Vec<_> = (0..200).map(|n| key(n.to_string())).collect();
    let acquires = keys.iter().zip(1..).map(|(key, owner)| command(key, acquire(owner)));
    let answers = replies(store.apply_batch(acquires.collect()).await);

    let mut settles = Vec::new();
    for ((key, reply), bits) in keys.iter().zip(answers).zip(1..) {
        let Reply::Acquired { token, attempt: 1, .. } = reply else { panic!("{reply:?}") };
        let grant = crate::support::grant(token, bits);
        settles.push(command(
            key,
            match bits % 3 {
                0 => complete(grant, "reply"),
                1 => Operation::GiveUp { grant, reason: "reason".into() },
                _ => Operation::Renew { grant, ttl: Duration::from_secs(60) },
            },
        ));
    }
    for (reply, bits) in replies(store.apply_batch(settles).await).into_iter().zip(1..) {
        let expected = [Reply::Completed, Reply::GivenUp, Reply::Renewed];
        assert_eq!(reply, expected[bits % 3], "{bits}");
    }
}

#[tokio::test]
async fn batched_commands_keep_their_own_retention() {
    let (server, store) = server_and_store().await;
    let mut commands = vec![command(&key("a"), acquire(1)), command(&key("b"), acquire(1))];
    commands[1].retention.attempts = Duration::from_secs(60);
    let names: Vec<_> = commands.iter().map(|command| redis_key(&command.key)).collect();
    replies(store.apply_batch(commands).await);

    let mut raw = raw_connection(&server);
    let lives = names.iter().map(|name| redis::cmd("TTL").arg(name).query(&mut raw).unwrap());
    let lives: Vec<i64> = lives.collect();
    assert!(lives[0] > 600_000, "{lives:?}");
    assert!((0..=60).contains(&lives[1]), "{lives:?}");
}

#[tokio::test]
async fn extreme_retention_still_sets_an_expiry() {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    for (name, retention) in [("none", Duration::ZERO), ("for ever", Duration::MAX)] {
        let key = key(name);
        let mut command = command(&key, acquire(1));
        command.retention.attempts = retention;
        let answer = store.apply(command).await.unwrap();
        assert!(matches!(answer.reply, Reply::Acquired { .. }), "{name}: {answer:?}");
        let life: i64 = redis::cmd("PTTL").arg(redis_key(&key)).query(&mut raw).unwrap();
        assert_ne!(life, -1, "{name}: an entry that is never deleted");
    }
}

#[tokio::test]
async fn keys_of_any_bytes_or_a_megabyte_are_distinct() {
    let (_server, store) = server_and_store().await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let long = vec![b'x'; 1 << 20];
    let mut longer = long.clone();
    longer.push(b'x');
    let tokens = [&b"{a}\r\n$-1\r\n"[..], &b"\0"[..], &b"}"[..], &every_byte, &long, &longer]
        .map(|name| key(name.to_vec()));
    for key in &tokens {
        let grant = acquire_lock(&store, key, 1).await;
        assert_eq!(apply(&store, key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    }
    for key in &tokens {
        let reply = apply(&store, key, acquire(2)).await.unwrap();
        assert!(matches!(reply, Reply::Duplicate { reply: Some(r), .. } if r == "done"));
    }
}

#[tokio::test]
async fn megabyte_reply_is_replayed() {
    let (_server, store) = server_and_store().await;
    let key = key("large");
    let grant = acquire_lock(&store, &key, 1).await;
    let large = bytes::Bytes::from(vec![7; 1 << 20]);
    let operation = Operation::Complete {
        grant,
        attempt: 1,
        fingerprint: None,
        reply: Some(large.clone()),
        details: None,
    };
    assert_eq!(apply(&store, &key, operation).await.unwrap(), Reply::Completed);
    let reply = apply(&store, &key, acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Duplicate { reply: Some(reply), .. } if reply == large));
}

#[tokio::test]
async fn empty_batch_has_no_answers() {
    let (_server, store) = server_and_store().await;
    assert!(store.apply_batch(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn token_exceeds_the_clients_floor() {
    let (_server, store) = server_and_store().await;
    let ahead = acquire_lock(&store, &key("clock"), 1).await.token.get() + 3_600_000_000;
    let floor = FencingToken::new(ahead).unwrap();
    for (name, bits) in [("a", 1), ("b", 2)] {
        let mut operation = acquire(bits);
        let Operation::Acquire { floor: of, .. } = &mut operation else { unreachable!() };
        *of = floor;
        let reply = apply(&store, &key(name), operation).await.unwrap();
        assert!(matches!(reply, Reply::Acquired { token, .. } if token.get() == ahead + 1));
    }
}
