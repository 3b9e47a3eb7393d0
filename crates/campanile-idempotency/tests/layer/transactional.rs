//! An entry that is completed beside the keeper, in one transaction with the handler's effect.

use std::fmt;

use campanile_core::{
    BoxError, Completion, LockLost, LostCause, Operation, Outcome, Reply, Request, State, error,
};
use campanile_idempotency::policy::OnLost;
use campanile_idempotency::{IdempotencyError, Store, reply};
use campanile_test::faults::Fault;
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::world::{Guarding, TTL, World, failed, is_pending, lock, refusal, request};

#[tokio::test(start_paused = true)]
async fn what_was_completed_beside_the_keeper_is_not_completed_again_and_tells_those_who_wait() {
    let world = World::new();
    let layer = world.layer().with_reply(reply::json());
    let (beside, memory) = (layer.clone(), world.memory.clone());
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let (beside, memory) = (beside.clone(), memory.clone());
        async move {
            // As long as a renewal or two.
            sleep(TTL).await;
            let (lock, receipt) = (lock(&request), "receipt".to_owned());
            let command = beside.completion(&lock, None, &receipt)?;
            let Operation::Complete { reply, .. } = command.operation.clone() else {
                panic!("{command:?}");
            };
            let answer = memory.apply(command).await?;
            assert_eq!(answer.reply, Reply::Completed);
            // Its answer is late, and the lock is to be renewed meanwhile.
            sleep(TTL / 2).await;
            let control = beside.control(&lock).expect("it is held");
            control.complete(Completion { reply, at: answer.now });
            Ok::<_, BoxError>(receipt)
        }
    }));
    let first = service.start(request("p-1"));
    assert!(is_pending(&first).await);
    let refused = service.run("p-1").await;
    let IdempotencyError::Locked { settled: Some(settled), .. } = refusal(&refused) else {
        panic!("{refused:?}");
    };
    let settled = settled.clone();
    assert_eq!(first.await.unwrap().unwrap(), Outcome::Processed("receipt".to_owned()));
    assert_eq!((world.state("p-1"), world.store.count("complete")), (Some(State::Completed), 0));

    settled.clone().await;
    world.store.forget_calls();
    let Outcome::Duplicate(duplicate) = service.run("p-1").await.unwrap() else {
        panic!("a duplicate");
    };
    assert_eq!(duplicate.reply.as_deref(), Some("receipt"));
    assert_eq!(world.store.commands(), [], "it is known here how the holder has ended");
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_found_to_be_anothers_is_lost_and_says_nothing_about_the_record() {
    let world = World::new();
    // Under the other policy the layer has dropped it by then.
    let layer = world.layer().with_lost(OnLost::Notify);
    let beside = layer.clone();
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let lock = lock(&request);
        beside.control(&lock).expect("it is held").lose(LostCause::Superseded);
        async move { Err::<(), BoxError>(lock.check().unwrap_err().into()) }
    }));
    let called = service.run("p-1").await;
    let IdempotencyError::LockLost(lost) = refusal(&called) else {
        panic!("{called:?}");
    };
    assert_eq!(lost.cause, LostCause::Superseded);
    assert_eq!(world.store.count("fail"), 0);
}

/// A handler's own error.
#[derive(Debug)]
struct NotCharged(LockLost);

impl fmt::Display for NotCharged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not charged")
    }
}

impl std::error::Error for NotCharged {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// As an inbox whose database is away at the commit, or a handler that asks its lock before an effect.
#[tokio::test(start_paused = true)]
async fn a_handler_that_ends_with_its_lost_lock_hands_its_attempt_back() {
    for is_wrapped in [false, true] {
        let world = World::new();
        let layer = world.layer().with_lost(OnLost::Notify);
        let service = layer.layer(service_fn(move |request: Request<()>| async move {
            let lost = lock(&request).lost().await;
            Err::<(), BoxError>(if is_wrapped { NotCharged(lost).into() } else { lost.into() })
        }));
        world.store.always_of("renew", Fault::Refuse);
        let called = service.run("p-1").await;
        let IdempotencyError::LockLost(lost) = refusal(&called) else {
            panic!("{called:?}");
        };
        assert_eq!(lost.cause, LostCause::Expired);
        world.store.heal();
        world.assert_quiet().await;
        let entry = world.entry("p-1").unwrap();
        let counts = (entry.state(), entry.attempt(), entry.interrupts());
        assert_eq!(counts, (State::Retrying, 0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ends_with_its_lock_held_for_too_long_has_failed() {
    let world = World::new();
    let layer = world.layer().with_lost(OnLost::Notify).with_max_hold(2 * TTL).unwrap();
    let service = layer.layer(service_fn(async |request: Request<()>| {
        Err::<(), BoxError>(lock(&request).lost().await.into())
    }));
    assert_eq!(failed(&service.run("p-1").await).attempt, 1);
    world.assert_quiet().await;
    assert_eq!(world.entry("p-1").map(|entry| entry.attempt()), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_was_not_called_has_used_up_nothing() {
    let world = World::new();
    let service = world.layer().layer(service_fn(async |_: Request<()>| {
        Err::<(), BoxError>(error::not_run("busy").into())
    }));
    for _ in 0..20 {
        let called = service.run("p-1").await;
        assert!(failed(&called).source.to_string().contains("did not run"));
        let entry = world.entry("p-1").unwrap();
        assert_eq!((entry.state(), entry.attempt(), entry.interrupts()), (State::Retrying, 0, 0));
    }
}
