//! What an error means for its record.

use std::fmt;
use std::time::Duration;

use campanile_core::limits::MAX_BACKOFF;
use campanile_core::{Disposition, Outcome, State, classify, error};
use campanile_idempotency::IdempotencyError;
use tokio::time::sleep;
use tower::load_shed::error::Overloaded;

use crate::harness::{HOUR, Harness, TestService, exhausted, failed, failing_service, layer_error};

#[tokio::test(start_paused = true)]
async fn skip_error_parks_record() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || error::skip("a test order").into());
    let Outcome::GivenUp(given_up) = service.run("p-1").await.unwrap() else {
        panic!("expected the key to be given up");
    };
    let text = "skipped by the handler: a test order";
    assert_eq!((given_up.attempts, given_up.error.as_deref()), (1, Some(text)));
    assert_eq!(harness.state("p-1"), Some(State::Failed));
}

#[tokio::test(start_paused = true)]
async fn stop_error_stops_consumer_and_is_uncounted_eight_times() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || error::stop("no database").into());
    let result = service.run("p-1").await;
    let failure = failed(&result);
    assert_eq!((failure.disposition, failure.retry_after), (Disposition::Stop, None));
    for starts in 1..=10 {
        let entry = harness.entry("p-1").unwrap();
        let counted = starts - starts.min(8);
        assert_eq!((entry.state(), entry.attempt()), (State::Retrying, counted), "{starts} starts");
        service.run("p-1").await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_error_sets_time_of_next_attempt() {
    let harness = Harness::new();
    let later = Duration::from_secs(77);
    let service =
        failing_service(&harness.layer(), move || error::retry_after("rate limit", later).into());
    let result = service.run("p-1").await;
    let failure = failed(&result);
    assert_eq!(failure.disposition, Disposition::Retry { after: Some(later) });
    assert_eq!(failure.retry_after, Some(later));
    sleep(later - Duration::from_secs(1)).await;
    assert!(layer_error(&service.run("p-1").await).is_contention());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(failed(&service.run("p-1").await).attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn reported_retry_time_matches_store() {
    let harness = Harness::new();
    let service =
        failing_service(&harness.layer(), || error::retry_after("next year", Duration::MAX).into());
    let result = service.run("p-1").await;
    assert_eq!(failed(&result).retry_after, Some(MAX_BACKOFF));
    let due = harness.entry("p-1").unwrap().at().duration_since(harness.clock.now());
    assert_eq!(due.unwrap(), MAX_BACKOFF);
}

#[tokio::test(start_paused = true)]
async fn overload_counts_no_attempt() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || Overloaded::new().into());
    for _ in 0..20 {
        let result = service.run("p-1").await;
        let failure = failed(&result);
        assert_eq!((failure.disposition, failure.attempt), (Disposition::Release, 1));
        assert!(failure.retry_after.is_some());
        let entry = harness.entry("p-1").unwrap();
        assert_eq!((entry.attempt(), entry.interrupts()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn unavailable_dependency_counts_no_attempt() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(2));
    let service =
        failing_service(&layer, || error::unavailable("connection refused").of("stripe").into());
    for _ in 0..40 {
        let result = service.run("p-1").await;
        let failure = failed(&result);
        let unavailable = Disposition::Unavailable { dependency: Some("stripe") };
        assert_eq!((failure.disposition, failure.attempt), (unavailable, 1));
        assert!(failure.retry_after.is_some());
        let entry = harness.entry("p-1").unwrap();
        assert_eq!((entry.state(), entry.attempt(), entry.interrupts()), (State::Retrying, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn classified_release_is_uncounted_eight_times() {
    #[derive(Debug)]
    struct Maintenance;
    impl fmt::Display for Maintenance {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("maintenance")
        }
    }
    impl std::error::Error for Maintenance {}

    let harness = Harness::new();
    let release = classify::on(|_: &Maintenance| Disposition::Release);
    let layer = harness.layer_with(|config| config.with_max_attempts(2)).with_classifier(release);
    let service = failing_service(&layer, || Maintenance.into());
    let mut runs = 0;
    let result = loop {
        let result = service.run("p-1").await;
        match layer_error(&result) {
            IdempotencyError::AttemptFailed(_) => runs += 1,
            _ => break result,
        }
    };
    assert_eq!(runs, 8 + 2);
    exhausted(&result);
}

#[tokio::test(start_paused = true)]
async fn earlier_classifiers_take_precedence_and_defaults_come_last() {
    let harness = Harness::new();
    let by_text = |text: &'static str, disposition| {
        move |error: &(dyn std::error::Error + 'static)| {
            error.to_string().contains(text).then_some(disposition)
        }
    };
    let layer = harness
        .layer()
        .with_classifier(by_text("no such", Disposition::Stop))
        .with_classifier(by_text("account", Disposition::Skip));
    let disposition = async |id: &str, text: &'static str| {
        let result = failing_service(&layer, move || text.into()).run(id).await;
        result.map_err(|error| match IdempotencyError::find(&*error) {
            Some(IdempotencyError::AttemptFailed(failed)) => failed.disposition,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(disposition("1", "no such account").await, Err(Disposition::Stop));
    assert!(matches!(disposition("2", "account closed").await, Ok(Outcome::GivenUp(_))));
    let retry = Disposition::Retry { after: None };
    assert_eq!(disposition("3", "gateway busy").await, Err(retry));
}

#[tokio::test(start_paused = true)]
async fn error_is_stored_with_sources_and_truncated_at_character() {
    let harness = Harness::new();
    let service = failing_service(&harness.layer(), || {
        error::retry_after(error::permanent("鐘".repeat(1000)), HOUR).into()
    });
    service.run("p-1").await.unwrap_err();
    let entry = harness.entry("p-1").unwrap();
    let kept = entry.error().unwrap();
    assert!(kept.starts_with("retry after 3600s: permanent error: 鐘鐘"), "{kept}");
    assert!((510..=512).contains(&kept.len()), "{}", kept.len());
    assert!(kept.ends_with('鐘'));
}

/// The handler did run. Only an overload error that is the error itself, and not one of its
/// sources, shows that the handler did not run.
#[tokio::test(start_paused = true)]
async fn overload_of_client_in_handler_runs_out_of_attempts() {
    #[derive(Debug)]
    struct ClientFailed(Overloaded);
    impl fmt::Display for ClientFailed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the client has failed")
        }
    }
    impl std::error::Error for ClientFailed {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(3));
    let service = failing_service(&layer, || ClientFailed(Overloaded::new()).into());
    let mut runs = 0;
    while !matches!(layer_error(&service.run("p-1").await), IdempotencyError::Exhausted(_)) {
        runs += 1;
        assert!(runs <= 3 + 8, "three attempts, eight uncounted");
        sleep(HOUR).await;
    }
    assert_eq!(runs, 3 + 8);
}
