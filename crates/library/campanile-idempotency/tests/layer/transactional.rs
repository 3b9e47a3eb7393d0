//! An entry that is completed without the keeper, in one transaction with the handler's effect.

use std::fmt;
use std::sync::{Arc, Mutex};

use campanile_core::{
    BoxError, Completion, LockLost, LostCause, Operation, Outcome, Reply, Request, State, error,
};
use campanile_idempotency::policy::OnLost;
use campanile_idempotency::{IdempotencyError, Store, reply};
use campanile_test::faults::Fault;
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::harness::{
    HOUR, Harness, TTL, TestService, failed, is_pending, layer_error, lock, request,
};

#[tokio::test(start_paused = true)]
async fn transactional_completion_is_not_repeated_and_answers_waiters() {
    let harness = Harness::new();
    let layer = harness.layer().with_reply(reply::json());
    let (layer_clone, memory) = (layer.clone(), harness.memory.clone());
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let (layer_clone, memory) = (layer_clone.clone(), memory.clone());
        async move {
            // Long enough for a renewal or two.
            sleep(TTL).await;
            let (lock, receipt) = (lock(&request), "receipt".to_owned());
            let command = layer_clone.completion(&lock, None, &receipt)?;
            let Operation::Complete { reply, .. } = command.operation.clone() else {
                panic!("{command:?}");
            };
            let answer = memory.apply(command).await?;
            assert_eq!(answer.reply, Reply::Completed);
            // The reply is late, and the lock is due for renewal meanwhile.
            sleep(TTL / 2).await;
            let control = layer_clone.control(&lock).expect("the lock is held");
            control.complete(Completion { reply, at: answer.now });
            Ok::<_, BoxError>(receipt)
        }
    }));
    let first = service.start(request("p-1"));
    assert!(is_pending(&first).await);
    let refused = service.run("p-1").await;
    let IdempotencyError::Locked { settled: Some(settled), .. } = layer_error(&refused) else {
        panic!("{refused:?}");
    };
    let settled = settled.clone();
    assert_eq!(first.await.unwrap().unwrap(), Outcome::Processed("receipt".to_owned()));
    assert_eq!(
        (harness.state("p-1"), harness.store.count("complete")),
        (Some(State::Completed), 0)
    );

    settled.clone().await;
    harness.store.forget_calls();
    let Outcome::Duplicate(duplicate) = service.run("p-1").await.unwrap() else {
        panic!("expected a duplicate");
    };
    assert_eq!(duplicate.reply.as_deref(), Some("receipt"));
    assert_eq!(harness.store.commands(), [], "the result is known in this process");
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn superseded_lock_is_lost_and_records_no_failure() {
    let harness = Harness::new();
    // With `OnLost::Cancel`, the layer would have dropped the handler by then.
    let layer = harness.layer().on_lost(OnLost::Notify);
    let layer_clone = layer.clone();
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let lock = lock(&request);
        layer_clone.control(&lock).expect("the lock is held").lose(LostCause::Superseded);
        async move { Err::<(), BoxError>(lock.check().unwrap_err().into()) }
    }));
    let result = service.run("p-1").await;
    let IdempotencyError::LockLost(lost) = layer_error(&result) else {
        panic!("{result:?}");
    };
    assert_eq!(lost.cause, LostCause::Superseded);
    assert_eq!(harness.store.count("fail"), 0);
}

/// An error type of the handler.
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

/// Like an inbox that loses its database before the commit, or a handler that checks its lock
/// before an effect.
#[tokio::test(start_paused = true)]
async fn handler_failing_with_lost_lock_is_not_counted() {
    for is_wrapped in [false, true] {
        let harness = Harness::new();
        let layer = harness.layer().on_lost(OnLost::Notify);
        let service = layer.layer(service_fn(move |request: Request<()>| async move {
            let lost = lock(&request).lost().await;
            Err::<(), BoxError>(if is_wrapped { NotCharged(lost).into() } else { lost.into() })
        }));
        harness.store.inject_always_of("renew", Fault::Refuse);
        let result = service.run("p-1").await;
        let IdempotencyError::LockLost(lost) = layer_error(&result) else {
            panic!("{result:?}");
        };
        assert_eq!(lost.cause, LostCause::Expired);
        harness.store.heal();
        harness.assert_settled().await;
        let entry = harness.entry("p-1").unwrap();
        let counts = (entry.state(), entry.attempt(), entry.interrupts());
        assert_eq!(counts, (State::Retrying, 0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn handler_exceeding_max_hold_is_failed_attempt() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_hold(2 * TTL)).on_lost(OnLost::Notify);
    let service = layer.layer(service_fn(async |request: Request<()>| {
        Err::<(), BoxError>(lock(&request).lost().await.into())
    }));
    assert_eq!(failed(&service.run("p-1").await).attempt, 1);
    harness.assert_settled().await;
    assert_eq!(harness.entry("p-1").map(|entry| entry.attempt()), Some(1));
}

#[tokio::test(start_paused = true)]
async fn handler_that_did_not_run_uses_up_no_attempt() {
    let harness = Harness::new();
    let service = harness.layer().layer(service_fn(async |_: Request<()>| {
        Err::<(), BoxError>(error::not_run("busy").into())
    }));
    for _ in 0..20 {
        let result = service.run("p-1").await;
        assert!(failed(&result).source.to_string().contains("did not run"));
        let entry = harness.entry("p-1").unwrap();
        assert_eq!((entry.state(), entry.attempt(), entry.interrupts()), (State::Retrying, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn transactional_completion_keeps_details_if_configured() {
    for keeps in [true, false] {
        let harness = Harness::new();
        let layer = harness.layer_with(|config| config.with_completed_details(keeps));
        let layer_clone = layer.clone();
        let service = layer.layer(service_fn(move |request: Request<()>| {
            let command = layer_clone.completion(&lock(&request), None, &());
            async move {
                let Operation::Complete { details, .. } = command?.operation else {
                    return Err(BoxError::from("not a completion"));
                };
                Ok(details.is_some())
            }
        }));
        assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed(keeps));
    }
}

#[tokio::test(start_paused = true)]
async fn lock_of_an_earlier_attempt_controls_nothing() {
    let harness = Harness::new();
    let layer = harness.layer();
    let (layer_clone, earlier) = (layer.clone(), Arc::new(Mutex::new(None)));
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let lock = lock(&request);
        let is_held = layer_clone.control(&lock).is_some();
        let earlier = earlier.lock().unwrap().replace(lock);
        let earlier = earlier.map(|lock| layer_clone.control(&lock).is_some());
        async move {
            match earlier {
                None => Err(BoxError::from("gateway busy")),
                Some(is_earlier_held) => Ok((is_held, is_earlier_held)),
            }
        }
    }));
    service.run("p-1").await.unwrap_err();
    sleep(HOUR).await;
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed((true, false)));
}

#[tokio::test(start_paused = true)]
async fn layer_is_stored_by_its_own_keeper_only() {
    let harness = Harness::new();
    let other = harness.other_process();
    let layer = harness.layer();
    assert!(layer.is_stored_by(&harness.keeper));
    assert!(layer.is_stored_by(&harness.keeper.clone()));
    assert!(!layer.is_stored_by(&other.keeper));
}
