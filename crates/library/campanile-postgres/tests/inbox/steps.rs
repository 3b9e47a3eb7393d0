//! Steps of handlers with transactions: effects that are not rolled back with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use campanile_core::{BoxError, Outcome, Request};
use campanile_postgres::Transaction;
use tower::service_fn;

use crate::fixture::{Fixture, insert};

/// Runs a handler with a step, which books at this isolation level before it, and fails in its first
/// calls with this statement. Returns how often the step and the handler ran.
async fn run(
    fixture: &Fixture,
    isolation: &'static str,
    failure: &'static str,
    deliveries: usize,
) -> (u32, u32) {
    let counts: Arc<[AtomicU32; 2]> = Arc::default();
    let counted = counts.clone();
    let handler = service_fn(move |request: Request<()>| {
        let counts = counted.clone();
        async move {
            let [steps, calls] = &*counts;
            let call = calls.fetch_add(1, Ordering::Relaxed);
            let transaction = Transaction::from_request(&request)?;
            let set = format!("SET TRANSACTION ISOLATION LEVEL {isolation}");
            transaction.batch_execute(&set).await?;
            insert(&request).await?;
            let lock = request.lock().unwrap();
            let charge = async || Ok::<_, BoxError>(steps.fetch_add(1, Ordering::Relaxed));
            assert_eq!(lock.step("charge", charge).await?, 0, "the result of the first run");
            if call < 2 {
                transaction.batch_execute(failure).await?;
            }
            Ok::<_, BoxError>(())
        }
    });
    for delivery in 1..=deliveries {
        let outcome = fixture.run(handler.clone(), "b-1").await;
        match delivery == deliveries {
            true => assert_eq!(outcome.unwrap(), Outcome::Processed(())),
            false => drop(outcome.unwrap_err()),
        }
    }
    let [steps, calls] = &*counts;
    (steps.load(Ordering::Relaxed), calls.load(Ordering::Relaxed))
}

#[tokio::test]
async fn step_is_kept_when_its_transaction_is_rolled_back() {
    let fixture = Fixture::new().await;
    assert_eq!(run(&fixture, "READ COMMITTED", "SELECT 1 / 0", 3).await, (1, 3));
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|3"));
}

#[tokio::test]
async fn step_runs_once_in_the_reruns_of_an_attempt() {
    const CONFLICT: &str = "DO $$BEGIN RAISE SQLSTATE '40001'; END$$";
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let fixture = Fixture::new().await;
        let (steps, calls) = run(&fixture, isolation, CONFLICT, 1).await;
        assert_eq!((steps, calls), (1, 3), "{isolation}");
        assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"), "{isolation}");
    }
}
