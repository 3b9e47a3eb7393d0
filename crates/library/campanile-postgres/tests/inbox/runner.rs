//! The inbox around a plain function, and around requests of other types.

use std::sync::atomic::{AtomicU32, Ordering};

use campanile_core::{BoxError, Outcome, WithLock};
use campanile_idempotency::{IdempotencyLayer, reply};
use campanile_postgres::{InboxRunner, Transaction};
use tower::{ServiceBuilder, ServiceExt};

use crate::fixture::Fixture;

async fn book(tx: &Transaction, id: &str) -> Result<u64, BoxError> {
    Ok(tx.execute("INSERT INTO ledger VALUES ($1, 100)", &[&id]).await?)
}

#[tokio::test]
async fn runner_runs_function_once_and_answers_duplicate_from_entry() {
    let fixture = Fixture::new().await;
    let runner = InboxRunner::from(
        fixture.inbox.layer(fixture.idempotency_layer().with_reply(reply::json())).unwrap(),
    );
    // local to this function: the closure may borrow it, because it need not be `'static`
    let id = String::from("b-1");
    let once = async |tx| book(&tx, &id).await;
    assert_eq!(runner.run(&id, once).await.unwrap(), Outcome::Processed(1));
    let Outcome::Duplicate(duplicate) = runner.run(&id, once).await.unwrap() else {
        panic!("it was completed");
    };
    assert_eq!(duplicate.reply, Some(1));
    assert_eq!(fixture.booked("b-1"), "1|100");
    assert_eq!(fixture.entry(), "C|1");
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn runner_rolls_back_failed_function_which_can_run_again() {
    let fixture = Fixture::new().await;
    let runner = InboxRunner::from(fixture.layer());
    let fails = async |tx| {
        book(&tx, "b-1").await?;
        Err::<u64, BoxError>("no such account".into())
    };
    let error = runner.run("b-1", fails).await.unwrap_err();
    assert!(format!("{error:?}").contains("no such account"), "{error:?}");
    assert_eq!(fixture.booked("b-1"), "0|0");
    assert_eq!(fixture.entry(), "R|1");
    fixture.assert_no_open_transaction().await;
    let outcome = runner.run("b-1", async |tx| book(&tx, "b-1").await).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(1));
    assert_eq!(fixture.booked("b-1"), "1|100");
    assert_eq!(fixture.entry(), "C|2");
}

#[tokio::test]
async fn runner_reruns_conflicting_function_and_books_once() {
    let fixture = Fixture::new().await;
    let runner = fixture.inbox.runner("ledger").unwrap();
    let runs = AtomicU32::new(0);
    let conflicting = async |tx: Transaction| {
        book(&tx, "b-1").await?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            let conflict = "DO $$BEGIN RAISE 'met' USING ERRCODE = '40001'; END$$";
            tx.batch_execute(conflict).await?;
        }
        Ok::<_, BoxError>(())
    };
    // the future is `Send`, so a spawned task can run it
    let outcome = is_send(runner.run("b-1", conflicting)).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(()));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!(fixture.booked("b-1"), "1|100");
    assert_eq!(fixture.entry(), "C|1");
}

fn is_send<F: Future + Send>(future: F) -> F {
    future
}

#[tokio::test]
async fn guarded_request_of_any_type_carries_a_transaction() {
    #[derive(Clone)]
    struct Booking {
        id: &'static str,
    }
    let fixture = Fixture::new().await;
    let by_id = |booking: &WithLock<Booking>| booking.id;
    let layer = IdempotencyLayer::new(fixture.inbox.keeper(), "ledger", by_id).unwrap();
    let service = ServiceBuilder::new()
        .map_request(WithLock::new)
        .layer(fixture.inbox.layer(layer).unwrap())
        .service_fn(async |booking: WithLock<Booking>| {
            book(Transaction::from_request(&booking)?, booking.id).await
        });
    let booking = Booking { id: "b-1" };
    assert_eq!(service.clone().oneshot(booking.clone()).await.unwrap(), Outcome::Processed(1));
    assert!(service.oneshot(booking).await.unwrap().is_duplicate());
    assert_eq!(fixture.booked("b-1"), "1|100");
}
