//! What a step that has run means for the end of its attempt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{
    BoxError, Command, Completion, LockHandle, Operation, Outcome, Request, Retention, State,
    StepError, error,
};
use campanile_idempotency::{IdempotencyError, Store};
use campanile_test::faults::Fault;
use tokio::time::{sleep, timeout};
use tower::{Layer, service_fn};

use super::{service, step_error};
use crate::harness::{
    HOUR, Harness, TTL, TestService, failed, fingerprint_layer, layer_error, lock,
    request_with_payload, store_key,
};

#[tokio::test(start_paused = true)]
async fn attempt_with_a_step_is_never_taken_back() {
    let harness = Harness::new();
    let charged = Arc::new(AtomicU32::new(0));
    let counted = charged.clone();
    // Like an inbox that rolls back the transaction after the step.
    let service = fingerprint_layer(&harness).layer(service_fn(move |request: Request<()>| {
        let charged = counted.clone();
        async move {
            let charge = async || Ok::<_, BoxError>(charged.fetch_add(1, Ordering::Relaxed));
            lock(&request).step("charge", charge).await?;
            Err::<(), BoxError>(error::undone("rolled back").into())
        }
    }));
    service.start(request_with_payload("p-1", "100")).await.unwrap().unwrap_err();
    sleep(HOUR).await;
    let changed = service.start(request_with_payload("p-1", "200")).await.unwrap();
    let error = layer_error(&changed);
    assert!(matches!(error, IdempotencyError::Mismatch { .. }), "{error:?}");
    // An attempt in which no step runs is not counted, whatever it reads.
    for _ in 0..10 {
        let retried = service.start(request_with_payload("p-1", "100")).await.unwrap();
        assert_eq!(failed(&retried).attempt, 1);
        sleep(HOUR).await;
    }
    assert_eq!(charged.load(Ordering::Relaxed), 1);
}

/// An operator learns of a lock that was lost after a step had run, although the handler is rolled back.
#[tokio::test(start_paused = true)]
async fn effect_of_a_step_stays_if_its_handler_is_rolled_back() {
    let harness = Harness::new();
    let layer = harness.layer().with_rollback();
    let layer_clone = layer.clone();
    let service = service(&layer, move |lock| {
        let control = layer_clone.control(&lock).unwrap();
        async move {
            assert!(!control.is_effect_possible());
            lock.step("charge", async || Ok::<_, BoxError>(())).await?;
            assert!(control.is_effect_possible());
            Ok(())
        }
    });
    service.run("p-1").await.unwrap();
}

/// The handler does not wait for the record, which reaches the store after the completion.
#[tokio::test(start_paused = true)]
async fn late_record_does_not_lose_a_completed_lock() {
    let harness = Harness::new();
    harness.store.inject_next_of("record_step", Fault::Refuse);
    let layer = harness.layer();
    let (layer_clone, memory) = (layer.clone(), harness.memory.clone());
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let (layer, memory) = (layer_clone.clone(), memory.clone());
        async move {
            let lock = lock(&request);
            let step = lock.step("notify", async || Ok::<_, BoxError>(()));
            timeout(Duration::from_nanos(1), step).await.unwrap_err();
            let answer = memory.apply(layer.completion(&lock, None, &())?).await?;
            sleep(TTL / 3).await;
            let control = layer.control(&lock).ok_or("the lock is not held")?;
            control.complete(Completion { reply: None, at: answer.now });
            Ok::<_, BoxError>(())
        }
    }));
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!(harness.store.count("record_step"), 2);
    assert_eq!(harness.state("p-1"), Some(State::Completed));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn result_that_cannot_be_encoded_is_permanent() {
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        // JSON has only strings as keys.
        let by_pair = async || Ok::<_, BoxError>(HashMap::from([((1, 2), 3)]));
        lock.step("charge", by_pair).await.map(|_| ())
    };
    let result = service(&harness.layer(), handle).run("p-1").await;
    let error = step_error(&result);
    assert!(error.to_string().contains("cannot be kept"), "{error}");
    assert_eq!(failed(&result).retry_after, None, "the step would run again");
    assert!(failed(&result).take_lock().is_some());
}

/// The lock is held on, to publish the dead letter. A task that the handler has left behind must not
/// have effects meanwhile.
#[tokio::test(start_paused = true)]
async fn lock_of_a_failed_last_attempt_runs_no_step() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(1));
    let leaked = Arc::new(Mutex::new(None));
    let kept = leaked.clone();
    let service = service(&layer, move |lock: LockHandle| {
        *kept.lock().unwrap() = Some(lock);
        async { Err::<(), BoxError>("gateway busy".into()) }
    });
    let result = service.run("p-1").await;
    let held = failed(&result).take_lock().unwrap();
    let lock = leaked.lock().unwrap().take().unwrap();
    assert!(lock.check().is_ok());
    let run = async || -> Result<(), StepError> { panic!("runs") };
    let result = lock.step("charge", run).await;
    assert!(matches!(result, Err(StepError::NoHandler)), "{result:?}");
    held.give_up("gateway busy").await.unwrap();
}

/// The effects of the steps were not undone, so the corrected record does not repeat them.
#[tokio::test(start_paused = true)]
async fn redriven_handler_gets_the_steps_also_with_another_payload() {
    let harness = Harness::new();
    let charged = Arc::new(Mutex::new(Vec::new()));
    let counted = charged.clone();
    let service = fingerprint_layer(&harness).layer(service_fn(move |request: Request<()>| {
        let charged = counted.clone();
        async move {
            let cents = request.record().payload().unwrap().clone();
            let charge = async || {
                charged.lock().unwrap().push(cents.clone());
                Ok::<_, BoxError>(String::from_utf8_lossy(&cents).into_owned())
            };
            let result = lock(&request).step("charge", charge).await?;
            match &*cents {
                b"100" => Err::<_, BoxError>(error::permanent("no such account").into()),
                _ => Ok(result),
            }
        }
    }));
    let first = service.start(request_with_payload("p-1", "100")).await.unwrap();
    failed(&first).take_lock().unwrap().give_up("no such account").await.unwrap();
    let token = harness.entry("p-1").unwrap().token();
    let operation = Operation::Redrive { token, force: false };
    let (key, retention) = (store_key("p-1"), Retention::default());
    harness.memory.apply(Command { key, operation, retention }).await.unwrap();

    let redriven = service.start(request_with_payload("p-1", "250")).await.unwrap().unwrap();
    assert_eq!(redriven, Outcome::Processed("100".to_owned()));
    assert_eq!(*charged.lock().unwrap(), ["100"]);
}
