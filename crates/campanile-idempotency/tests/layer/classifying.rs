//! What an error means for its record.

use std::fmt;
use std::time::Duration;

use campanile_core::limits::MAX_BACKOFF;
use campanile_core::{Disposition, Outcome, State, classify, error};
use campanile_idempotency::IdempotencyError;
use tokio::time::sleep;
use tower::load_shed::error::Overloaded;

use crate::world::{Guarding, HOUR, World, exhausted, failed, failing, refusal};

#[tokio::test(start_paused = true)]
async fn a_handler_can_skip_its_record() {
    let world = World::new();
    let service = failing(&world.layer(), || error::skip("a test order").into());
    let Outcome::Parked(parked) = service.run("p-1").await.unwrap() else {
        panic!("parked");
    };
    let text = "skipped by the handler: a test order";
    assert_eq!((parked.attempts, parked.error.as_deref()), (1, Some(text)));
    assert_eq!(world.state("p-1"), Some(State::Failed));
}

#[tokio::test(start_paused = true)]
async fn a_handler_can_stop_the_consumer_and_its_attempt_is_handed_back_eight_times() {
    let world = World::new();
    let service = failing(&world.layer(), || error::stop("no database").into());
    let called = service.run("p-1").await;
    let failure = failed(&called);
    assert_eq!((failure.disposition, failure.retry_after), (Disposition::Stop, None));
    for starts in 1..=10 {
        let entry = world.entry("p-1").unwrap();
        let counted = starts - starts.min(8);
        assert_eq!((entry.state(), entry.attempt()), (State::Retrying, counted), "{starts} starts");
        service.run("p-1").await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_can_say_when_to_try_again() {
    let world = World::new();
    let later = Duration::from_secs(77);
    let service = failing(&world.layer(), move || error::retry_after("rate limit", later).into());
    let called = service.run("p-1").await;
    let failure = failed(&called);
    assert_eq!(failure.disposition, Disposition::Retry { after: Some(later) });
    assert_eq!(failure.retry_after, Some(later));
    sleep(later - Duration::from_secs(1)).await;
    assert!(refusal(&service.run("p-1").await).is_contention());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(failed(&service.run("p-1").await).attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_told_about_the_next_attempt_is_what_the_store_has() {
    let world = World::new();
    let service = failing(&world.layer(), || error::retry_after("next year", Duration::MAX).into());
    let called = service.run("p-1").await;
    assert_eq!(failed(&called).retry_after, Some(MAX_BACKOFF));
    let due = world.entry("p-1").unwrap().at().duration_since(world.clock.now());
    assert_eq!(due.unwrap(), MAX_BACKOFF);
}

#[tokio::test(start_paused = true)]
async fn overload_is_not_the_records_fault_and_counts_no_attempt() {
    let world = World::new();
    let service = failing(&world.layer(), || Overloaded::new().into());
    for _ in 0..20 {
        let called = service.run("p-1").await;
        let failure = failed(&called);
        assert_eq!((failure.disposition, failure.attempt), (Disposition::Release, 1));
        assert!(failure.retry_after.is_some());
        let entry = world.entry("p-1").unwrap();
        assert_eq!((entry.attempt(), entry.interrupts()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_by_the_users_word_is_granted_eight_times() {
    #[derive(Debug)]
    struct Maintenance;
    impl fmt::Display for Maintenance {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("maintenance")
        }
    }
    impl std::error::Error for Maintenance {}

    let world = World::new();
    let release = classify::on(|_: &Maintenance| Disposition::Release);
    let layer = world.layer().with_classifier(release).with_max_attempts(2).unwrap();
    let service = failing(&layer, || Maintenance.into());
    let mut runs = 0;
    let called = loop {
        let called = service.run("p-1").await;
        match refusal(&called) {
            IdempotencyError::Failed(_) => runs += 1,
            _ => break called,
        }
    };
    assert_eq!(runs, 8 + 2);
    exhausted(&called);
}

#[tokio::test(start_paused = true)]
async fn later_classifiers_are_asked_first_and_the_defaults_last() {
    let world = World::new();
    let by_text = |text: &'static str, disposition| {
        move |error: &(dyn std::error::Error + 'static)| {
            error.to_string().contains(text).then_some(disposition)
        }
    };
    let layer = world
        .layer()
        .with_classifier(by_text("account", Disposition::Skip))
        .with_classifier(by_text("no such", Disposition::Stop));
    let disposition = async |id: &str, text: &'static str| {
        let called = failing(&layer, move || text.into()).run(id).await;
        called.map_err(|error| match IdempotencyError::find(&*error) {
            Some(IdempotencyError::Failed(failed)) => failed.disposition,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(disposition("1", "no such account").await, Err(Disposition::Stop));
    assert!(matches!(disposition("2", "account closed").await, Ok(Outcome::Parked(_))));
    let retry = Disposition::Retry { after: None };
    assert_eq!(disposition("3", "gateway busy").await, Err(retry));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_kept_with_its_sources_and_cut_where_a_character_ends() {
    let world = World::new();
    let service = failing(&world.layer(), || {
        error::retry_after(error::permanent("鐘".repeat(1000)), HOUR).into()
    });
    service.run("p-1").await.unwrap_err();
    let entry = world.entry("p-1").unwrap();
    let kept = entry.error().unwrap();
    assert!(kept.starts_with("retry after 3600s: permanent error: 鐘鐘"), "{kept}");
    assert!((510..=512).contains(&kept.len()), "{}", kept.len());
    assert!(kept.ends_with('鐘'));
}

/// That handler did run: only the very error of a layer that refused says that it did not.
#[tokio::test(start_paused = true)]
async fn overload_of_a_client_inside_the_handler_comes_to_an_end() {
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
    let world = World::new();
    let layer = world.layer().with_max_attempts(3).unwrap();
    let service = failing(&layer, || ClientFailed(Overloaded::new()).into());
    let mut runs = 0;
    while !matches!(refusal(&service.run("p-1").await), IdempotencyError::Exhausted(_)) {
        runs += 1;
        assert!(runs <= 3 + 8, "three attempts, eight handed back");
        sleep(HOUR).await;
    }
    assert_eq!(runs, 3 + 8);
}
