//! Dropping a call does not mix up the answers of other calls.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use campanile_core::{Operation, Reply};
use campanile_idempotency::Store;

use crate::support::{acquire, acquire_lock, apply, command, complete, key, server_and_store};

/// Polls the future up to `polls` times, yields to the connection after each, and drops it.
async fn poll_and_drop(polls: usize, future: impl Future) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn dropped_calls_never_mix_up_replies() {
    let (_server, store) = server_and_store().await;
    // Each key is completed with its own name, so that an answer identifies the call it belongs to.
    let names: Vec<String> = (0..50).map(|n| format!("key {n}")).collect();
    for name in &names {
        let key = key(name.clone());
        let grant = acquire_lock(&store, &key, 1).await;
        let reply = Some(name.clone().into());
        let done =
            Operation::Complete { grant, attempt: 1, fingerprint: None, reply, details: None };
        assert_eq!(apply(&store, &key, done).await.unwrap(), Reply::Completed);
    }
    for polls in 0..6 {
        for (n, name) in names.iter().enumerate() {
            let dropped = store.apply(command(&key(names[(n + 7) % 50].clone()), acquire(2)));
            poll_and_drop(polls, dropped).await;
            let reply = apply(&store, &key(name.clone()), acquire(3)).await.unwrap();
            assert!(
                matches!(&reply, Reply::Duplicate { reply: Some(reply), .. } if reply == name),
                "{name} dropped after {polls} polls: {reply:?}"
            );
        }
    }
}

#[tokio::test]
async fn dropped_acquire_can_be_repeated_by_its_owner() {
    let (_server, store) = server_and_store().await;
    for polls in 0..8 {
        let key = key(format!("key {polls}"));
        poll_and_drop(polls, store.apply(command(&key, acquire(1)))).await;
        let grant = acquire_lock(&store, &key, 1).await;
        assert_eq!(apply(&store, &key, complete(grant, "done")).await.unwrap(), Reply::Completed);
    }
}

#[test]
fn call_dropped_while_connecting_does_not_block_the_next() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_server, store) = server_and_store().await;
        let key = key("first");
        {
            let mut first = pin!(store.apply(command(&key, acquire(1))));
            assert!(matches!(
                first.as_mut().poll(&mut Context::from_waker(Waker::noop())),
                Poll::Pending
            ));
        }
        acquire_lock(&store, &key, 2).await;
    });
}

#[test]
fn store_outlives_its_first_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_server, store) = runtime().block_on(server_and_store());
    runtime().block_on(acquire_lock(&store, &key("first"), 1));
    runtime().block_on(acquire_lock(&store, &key("second"), 1));
}
