//! Keys that get no further attempt.

use campanile_core::{BoxError, Disposition, FencingToken, Outcome, Reply, Request, State, error};
use campanile_idempotency::policy::OnExhausted;
use campanile_idempotency::{IdempotencyError, Store};
use campanile_test::faults::Fault;
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::harness::{
    HOUR, Harness, TTL, TestService, exhausted, failed, failing_service, layer_error, lock,
    request, run_until_idle, store_key,
};

#[tokio::test(start_paused = true)]
async fn given_up_lock_is_handed_over_once_for_rejection() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || error::permanent("no such account").into());
    let result = service.run("p-1").await;
    let failure = failed(&result);
    assert_eq!((failure.disposition, failure.retry_after), (Disposition::DeadLetter, None));
    let lock = failure.take_lock().unwrap();
    assert!(failure.take_lock().is_none(), "taken only once");

    // Publishing takes a while, and the lock is renewed meanwhile.
    sleep(TTL * 3).await;
    assert!(lock.lock_handle().check().is_ok());
    assert!(layer_error(&service.run("p-1").await).is_contention());
    lock.give_up("published").await.unwrap();
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.error().as_deref()), (State::Failed, Some("published")));
    let Outcome::GivenUp(given_up) = service.run("p-1").await.unwrap() else {
        panic!("expected the key to be given up");
    };
    assert_eq!((given_up.attempts, given_up.error.as_deref()), (1, Some("published")));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn debug_shows_whether_error_contains_lock() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || error::permanent("no such account").into());
    let result = service.run("p-1").await;
    let failure = failed(&result);
    assert!(format!("{failure:?}").ends_with("lock: held }"), "{failure:?}");
    drop(failure.take_lock());
    assert!(format!("{failure:?}").ends_with("lock: none }"), "{failure:?}");
}

#[tokio::test(start_paused = true)]
async fn rejection_without_reason_keeps_last_error_of_handler() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(2));
    let service = failing_service(&layer, || "gateway busy".into());
    service.run("p-1").await.unwrap_err();
    sleep(HOUR).await;
    let service = failing_service(&layer, || "account closed".into());
    let result = service.run("p-1").await;
    failed(&result).take_lock().unwrap().give_up("").await.unwrap();
    assert_eq!(harness.entry("p-1").unwrap().error().as_deref(), Some("account closed"));
}

#[tokio::test(start_paused = true)]
async fn untaken_lock_counts_failed_attempt_and_does_not_fail_key() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || error::permanent("no such account").into());
    let result = service.run("p-1").await;
    run_until_idle().await;
    assert_eq!(harness.state("p-1"), Some(State::Processing), "held while the error exists");
    drop(result);
    run_until_idle().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
    assert_eq!(entry.error().as_deref(), Some("permanent error: no such account"));

    // Another attempt would not help: the next delivery gets the lock for its dead letter.
    sleep(HOUR).await;
    let result = service.run("p-1").await;
    let giving_up = exhausted(&result);
    assert_eq!((giving_up.attempts, giving_up.give_ups), (1, 1));
    assert_eq!(giving_up.last_error.as_deref(), Some("permanent error: no such account"));
    giving_up.take_lock().unwrap().give_up("").await.unwrap();
    assert_eq!(harness.state("p-1"), Some(State::Failed));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn failed_last_attempt_can_be_retried_with_more_attempts() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(1));
    let result = failing_service(&layer, || "gateway busy".into()).run("p-1").await;
    assert_eq!(failed(&result).disposition, Disposition::DeadLetter);
    drop(result);
    sleep(HOUR).await;
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

/// A record that crashes its process reports no failed attempt, but attempts are counted when they
/// start.
#[tokio::test(start_paused = true)]
async fn key_of_crashing_processes_runs_out_of_attempts() {
    let first_process = Harness::new();
    for attempt in 1..=3 {
        let mut harness = first_process.other_process();
        let (service, mut handle) =
            harness.mock_service(harness.layer_with(|config| config.with_max_attempts(3)));
        let _call = service.start(request("p-1"));
        let (request, _respond) = handle.next_request().await.unwrap();
        assert_eq!(request.lock().unwrap().attempt(), attempt);
        harness.crash().await;
        sleep(TTL).await; // the lock outlives the process by at most its TTL
    }
    for give_ups in 1..=2 {
        let mut harness = first_process.other_process();
        let (service, _handle) =
            harness.mock_service(harness.layer_with(|config| config.with_max_attempts(3)));
        let result = service.run("p-1").await;
        let giving_up = exhausted(&result);
        assert_eq!((giving_up.attempts, giving_up.give_ups), (3, give_ups));
        assert_eq!(giving_up.last_error, None, "no attempt survived to record one");
        harness.crash().await;
        sleep(TTL).await;
    }
    let (service, _handle) =
        first_process.mock_service(first_process.layer_with(|config| config.with_max_attempts(3)));
    let result = service.run("p-1").await;
    let lock = exhausted(&result).take_lock().unwrap();
    assert!(exhausted(&result).take_lock().is_none(), "taken only once");
    lock.give_up("published").await.unwrap();
    assert!(matches!(service.run("p-1").await.unwrap(), Outcome::GivenUp(_)));
    first_process.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn untaken_give_up_lock_is_released_and_granted_again() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(1));
    let service = failing_service(&layer, || "declined".into());
    drop(service.run("p-1").await);
    for _ in 0..3 {
        sleep(HOUR).await;
        let result = service.run("p-1").await;
        let giving_up = exhausted(&result);
        // No give-up was interrupted, so the counter stays at one.
        assert_eq!((giving_up.attempts, giving_up.give_ups), (1, 1));
        assert_eq!(giving_up.last_error.as_deref(), Some("declined"));
    }
    run_until_idle().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
    assert!(!entry.is_released(), "the next grant follows a backoff");
}

#[tokio::test(start_paused = true)]
async fn give_up_lock_can_be_released() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(1));
    let service = failing_service(&layer, || "declined".into());
    drop(service.run("p-1").await);
    sleep(HOUR).await;
    let result = service.run("p-1").await;
    exhausted(&result).take_lock().unwrap().release().await.unwrap();
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

#[tokio::test(start_paused = true)]
async fn released_last_attempt_is_uncounted_eight_times() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(1));
    let service = failing_service(&layer, || "declined".into());
    for released in 1..=9 {
        let result = service.run("p-1").await;
        failed(&result).take_lock().unwrap().release().await.unwrap();
        let entry = harness.entry("p-1").unwrap();
        assert_eq!(entry.attempt(), u16::from(released > 8), "{released} times");
    }
    assert!(matches!(layer_error(&service.run("p-1").await), IdempotencyError::Exhausted(_)));
}

#[tokio::test(start_paused = true)]
async fn given_up_record_is_processed_after_redrive() {
    let harness = Harness::new();
    let layer =
        harness.layer_with(|config| config.with_max_attempts(1)).on_exhausted(OnExhausted::GiveUp);
    failing_service(&layer, || "declined".into()).run("p-1").await.unwrap();
    let fixed_service = layer.layer(service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(lock(&request).attempt())
    }));
    assert!(matches!(fixed_service.run("p-1").await.unwrap(), Outcome::GivenUp(_)));

    let token = harness.entry("p-1").unwrap().token();
    let redrive = |token| harness.memory.redrive(store_key("p-1"), token, false);
    assert_eq!(redrive(FencingToken::ZERO).await.unwrap(), Reply::Lost);
    assert_eq!(redrive(token).await.unwrap(), Reply::Reopened);
    assert_eq!(fixed_service.run("p-1").await.unwrap(), Outcome::Processed(1));
}

#[tokio::test(start_paused = true)]
async fn exhausted_key_is_given_up_immediately_by_policy() {
    let first_process = Harness::new();
    let layer = |harness: &Harness| {
        let layer = harness.layer_with(|config| config.with_max_attempts(1));
        layer.on_exhausted(OnExhausted::GiveUp)
    };
    let mut harness = first_process.other_process();
    let (service, mut handle) = harness.mock_service(layer(&harness));
    let _call = service.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    harness.crash().await;
    sleep(TTL).await;
    let (service, _handle) = first_process.mock_service(layer(&first_process));
    let Outcome::GivenUp(given_up) = service.run("p-1").await.unwrap() else {
        panic!("expected the key to be given up");
    };
    assert_eq!((given_up.attempts, given_up.error), (1, None));
    assert_eq!(first_process.state("p-1"), Some(State::Failed));
    first_process.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn rejection_is_repeated_until_answered() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || error::permanent("no such account").into());
    let result = service.run("p-1").await;
    let lock = failed(&result).take_lock().unwrap();
    harness.store.inject_next_of("give_up", Fault::LoseReply);
    harness.store.inject_next_of("give_up", Fault::Refuse);
    lock.give_up("published").await.unwrap();
    assert_eq!(harness.store.count("give_up"), 3);
    assert_eq!(harness.state("p-1"), Some(State::Failed));
}

#[tokio::test(start_paused = true)]
async fn superseded_rejection_reports_lost_lock_and_changes_nothing() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || error::permanent("no such account").into());
    let result = service.run("p-1").await;
    let lock = failed(&result).take_lock().unwrap();
    harness.take_over("p-1").await;
    let before = harness.entry("p-1");
    let lost = lock.give_up("published").await.unwrap_err();
    assert!(matches!(lost, IdempotencyError::LockLost(_)), "{lost:?}");
    assert_eq!(harness.entry("p-1"), before);
}

#[tokio::test(start_paused = true)]
async fn rejection_takes_effect_if_its_future_is_dropped() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || error::permanent("no such account").into());
    let result = service.run("p-1").await;
    drop(failed(&result).take_lock().unwrap().give_up("published"));
    run_until_idle().await;
    assert_eq!(harness.state("p-1"), Some(State::Failed));
}
