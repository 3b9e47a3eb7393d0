//! The inbox around a plain function, and around requests of other types.

use std::sync::atomic::{AtomicU32, Ordering};

use campanile_core::{BoxError, Guarded, Outcome};
use campanile_idempotency::{IdempotencyLayer, reply};
use campanile_postgres::{InboxGuard, Transaction};
use tower::{ServiceBuilder, ServiceExt};

use crate::world::World;

/// Returns the number of rows written.
async fn book(tx: &Transaction, id: &str) -> Result<u64, BoxError> {
    Ok(tx.execute("INSERT INTO ledger VALUES ($1, 100)", &[&id]).await?)
}

#[tokio::test]
async fn a_function_books_once_for_its_key_and_a_duplicate_is_answered_from_its_entry() {
    let world = World::new().await;
    let guard =
        InboxGuard::from(world.inbox.layer(world.guarded().with_reply(reply::json())).unwrap());
    // local to this function: the closure may borrow it, because it need not be `'static`
    let id = String::from("b-1");
    let once = async |tx| book(&tx, &id).await;
    assert_eq!(guard.run(&id, once).await.unwrap(), Outcome::Processed(1));
    let Outcome::Duplicate(duplicate) = guard.run(&id, once).await.unwrap() else {
        panic!("it was completed");
    };
    assert_eq!(duplicate.reply, Some(1));
    assert_eq!(world.booked("b-1"), "1|100");
    assert_eq!(world.entry(), "C|1");
    world.assert_all_ended().await;
}

#[tokio::test]
async fn what_a_function_wrote_that_fails_is_gone_and_it_can_be_run_again() {
    let world = World::new().await;
    let guard = InboxGuard::from(world.layer());
    let fails = async |tx| {
        book(&tx, "b-1").await?;
        Err::<u64, BoxError>("no such account".into())
    };
    let error = guard.run("b-1", fails).await.unwrap_err();
    assert!(format!("{error:?}").contains("no such account"), "{error:?}");
    assert_eq!(world.booked("b-1"), "0|0");
    assert_eq!(world.entry(), "R|1");
    world.assert_all_ended().await;
    let outcome = guard.run("b-1", async |tx| book(&tx, "b-1").await).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(1));
    assert_eq!(world.booked("b-1"), "1|100");
    assert_eq!(world.entry(), "C|2");
}

#[tokio::test]
async fn a_function_whose_transaction_met_another_is_run_again_and_books_once() {
    let world = World::new().await;
    let guard = world.inbox.guard("ledger").unwrap();
    let runs = AtomicU32::new(0);
    let meets = async |tx: Transaction| {
        book(&tx, "b-1").await?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            let conflict = "DO $$BEGIN RAISE 'met' USING ERRCODE = '40001'; END$$";
            tx.batch_execute(conflict).await?;
        }
        Ok::<_, BoxError>(())
    };
    // the future is `Send`, so a spawned task can run it
    let outcome = is_send(guard.run("b-1", meets)).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(()));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!(world.booked("b-1"), "1|100");
    assert_eq!(world.entry(), "C|1");
}

fn is_send<F: Future + Send>(future: F) -> F {
    future
}

#[tokio::test]
async fn a_request_of_any_type_has_room_for_a_transaction_once_it_is_guarded() {
    #[derive(Clone)]
    struct Booking {
        id: &'static str,
    }
    let world = World::new().await;
    let by_id = |booking: &Guarded<Booking>| booking.id;
    let layer = IdempotencyLayer::new(world.inbox.keeper(), "ledger", by_id).unwrap();
    let service = ServiceBuilder::new()
        .map_request(Guarded::new)
        .layer(world.inbox.layer(layer).unwrap())
        .service_fn(async |booking: Guarded<Booking>| {
            book(Transaction::of(&booking)?, booking.id).await
        });
    let booking = Booking { id: "b-1" };
    assert_eq!(service.clone().oneshot(booking.clone()).await.unwrap(), Outcome::Processed(1));
    assert!(service.oneshot(booking).await.unwrap().is_duplicate());
    assert_eq!(world.booked("b-1"), "1|100");
}
