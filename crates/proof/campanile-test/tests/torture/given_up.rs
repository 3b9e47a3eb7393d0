//! Without a fault, each record is completed, or given up as the test expects.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use campanile_core::{BoxError, Record, Request, error};
use campanile_idempotency::IdempotencyConfig;
use campanile_test::torture::{Failure, Report, point, torture};

use crate::shop::{Shop, layer, layer_with, record, stack, torture_handler};

#[test]
fn poison_record_is_given_up_in_each_situation() {
    async fn refuse(_: Shop, _: Request<String>) -> Result<(), BoxError> {
        point("looked up").await;
        Err(error::permanent("no such account").into())
    }
    let torture = torture(
        async || Shop::default(),
        async |shop, keeper| Ok(stack(layer(keeper)?, shop, refuse)),
        async |_| Ok::<_, BoxError>(()),
    );
    assert_eq!(torture.with_given_up(1).run([record("p-1")]).unwrap().awaits, 1);
}

/// Tortures a stack with a record whose payload is invalid, and one that is completed.
fn torture_invalid_record(given_up: usize) -> Result<Report, Failure> {
    async fn book(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.upsert(request.body(), None).await;
        Ok(())
    }
    let torture = torture(
        async || Shop::default(),
        async |shop, keeper| Ok(stack(layer(keeper)?, shop, book)),
        async |shop: Shop| shop.effects().check_rows(),
    );
    let invalid = Record::builder("payments", 0, 0).payload("{").build();
    torture.with_given_up(given_up).run([record("p-1"), invalid])
}

#[test]
fn as_many_records_are_given_up_as_expected() {
    assert_eq!(torture_invalid_record(1).unwrap().awaits, 2);

    let story = torture_invalid_record(0).unwrap_err().story;
    assert!(story.starts_with("without a fault: record 2 of 2 was given up: "), "{story}");

    let story = torture_invalid_record(2).unwrap_err().story;
    assert!(story.starts_with("without a fault; record 2 of 2 given up ("), "{story}");
    assert!(story.ends_with("): 1 of 2 records given up, expected 2"), "{story}");
}

/// Tortures a handler that completes no record, with a check that always succeeds. Returns the story, and how
/// often the handler ran.
fn torture_without_completion<F>(handle: fn() -> F) -> (String, usize)
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let count_and_handle = move |_: Shop, _: Request<String>| {
        counted.fetch_add(1, Ordering::Relaxed);
        handle()
    };
    let failure = torture_handler(count_and_handle, |_| Ok(())).unwrap_err();
    assert_eq!(failure.report.situations, 1);
    (failure.story, runs.load(Ordering::Relaxed))
}

#[test]
fn handler_that_never_completes_fails_without_a_fault() {
    let (story, runs) = torture_without_completion(|| async { Err("no database".into()) });
    let reason = "p-1 was given up: attempt 8 of 8 failed: no database";
    assert_eq!(story, format!("without a fault; delivered again 7 times: {reason}"));
    assert_eq!(runs, 8);

    let (story, runs) =
        torture_without_completion(|| async { resume_unwind(Box::new("no database")) });
    let reason = "p-1 was given up: attempt 8 of 8 failed: the handler panicked: no database";
    assert_eq!(story, format!("without a fault; delivered again 7 times: {reason}"));
    assert_eq!(runs, 8);
}

#[test]
fn handler_that_hangs_fails_without_a_fault() {
    let (story, runs) = torture_without_completion(pending);
    let reason = "no attempts left after 8; last error: held longer than `max_hold`";
    let reason = format!("p-1 was given up: {reason}");
    assert_eq!(story, format!("without a fault; delivered again 8 times: {reason}"));
    assert_eq!(runs, 8);
}

#[test]
fn stack_with_too_few_attempts_is_reported() {
    async fn book(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        shop.upsert(request.body(), None).await;
        Ok(())
    }
    for attempts in [1, 2] {
        let torture = torture(
            async || Shop::default(),
            async |shop, keeper| {
                let config = IdempotencyConfig::new("shop").with_max_attempts(attempts);
                Ok(stack(layer_with(keeper, config)?, shop, book))
            },
            async |shop: Shop| shop.effects().check_rows(),
        );
        let story = torture.run([record("p-1")]).unwrap_err().story;
        let dropped = "dropped at await 1 of attempt 1 (upsert requested), then delivered again";
        assert!(story.starts_with(dropped), "{story}");
        let reason = format!(
            ", then given up: the record ran out of attempts; the stack allows {attempts} for each \
             key, but this test needs at least three (`with_max_attempts`)"
        );
        assert!(story.ends_with(&reason), "{story}");
    }
}
