//! A handler's writes and its entry are committed together.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, Disposition, LostCause, Outcome, Request, Unguarded, key};
use campanile_idempotency::policy::{OnLocked, OnMissingKey};
use campanile_idempotency::{IdempotencyError, IdempotencyLayer, MemoryStore, reply};
use campanile_postgres::{Inbox, InboxError, PgStore, Transaction, TransactionError};
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::patient;
use crate::world::{LONG, World, book, insert, request};

#[tokio::test]
async fn what_the_handler_writes_is_committed_with_its_entry_and_once() {
    let world = World::new().await;
    assert_eq!(world.run(service_fn(book), "b-1").await.unwrap(), Outcome::Processed(()));
    assert!(world.run(service_fn(book), "b-1").await.unwrap().is_duplicate());
    assert_eq!(world.booked("b-1"), "1|100");
    assert_eq!(world.entry(), "C|1");
    world.assert_all_ended().await;
}

#[tokio::test]
async fn a_handler_reads_what_it_has_written_and_one_row_or_none() {
    let world = World::new().await;
    let looks = service_fn(async |request: Request<()>| {
        let cents = async || {
            let transaction = Transaction::of(&request)?;
            let row = transaction.query_opt("SELECT cents FROM ledger", &[]).await?;
            Ok::<Option<i64>, BoxError>(row.map(|row| row.try_get(0)).transpose()?)
        };
        let before = cents().await?;
        insert(&request).await?;
        Ok::<_, BoxError>((before, cents().await?))
    });
    assert_eq!(world.run(looks, "b-1").await.unwrap(), Outcome::Processed((None, Some(100))));
}

#[tokio::test]
async fn what_a_failed_handler_wrote_is_gone_and_its_attempt_is_counted() {
    let world = World::new().await;
    let fails = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Err::<(), BoxError>("no such account".into())
    });
    world.run(fails, "b-1").await.unwrap_err();
    assert_eq!(world.booked("b-1"), "0|0");
    assert_eq!(world.entry(), "R|1");
    world.assert_all_ended().await;
    assert_eq!(world.run(service_fn(book), "b-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!(world.entry(), "C|2");
}

#[tokio::test]
async fn what_a_handler_wrote_that_panics_is_gone_and_its_attempt_is_counted() {
    let world = World::new().await;
    let panics = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let account: Option<()> = None;
        account.ok_or_else(|| -> BoxError { panic!("no such account") })
    });
    world.run(panics, "b-1").await.unwrap_err();
    world.assert_all_ended().await;
    assert_eq!(world.booked("b-1"), "0|0");
    assert_eq!(world.entry(), "R|1");
}

#[tokio::test]
async fn a_duplicate_is_answered_with_the_reply_that_was_committed() {
    let world = World::new().await;
    let layer = world.inbox.layer(world.guarded().with_reply(reply::json())).unwrap();
    let service = layer.layer(service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Ok::<_, BoxError>(17)
    }));
    assert_eq!(service.clone().oneshot(request("b-1")).await.unwrap(), Outcome::Processed(17));
    let Outcome::Duplicate(duplicate) = service.oneshot(request("b-1")).await.unwrap() else {
        panic!("it was completed");
    };
    assert_eq!(duplicate.reply, Some(17));
}

#[tokio::test]
async fn who_waits_for_a_key_is_answered_when_its_transaction_is_committed() {
    let world = World::new().await;
    let layer = world.guarded().with_locked(OnLocked::Wait { at_most: LONG });
    let (began, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let signals = (began.clone(), go_on.clone());
    let service = world.inbox.layer(layer).unwrap().layer(service_fn(move |request| {
        let (began, go_on) = signals.clone();
        async move {
            began.notify_one();
            go_on.notified().await;
            book(request).await
        }
    }));
    let first = tokio::spawn(service.clone().oneshot(request("b-1")));
    began.notified().await;
    let second = tokio::spawn(service.oneshot(request("b-1")));
    go_on.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), Outcome::Processed(()));
    assert!(second.await.unwrap().unwrap().is_duplicate());
    assert_eq!(world.booked("b-1"), "1|100");
}

#[tokio::test]
async fn a_lock_that_another_has_taken_over_commits_nothing() {
    let world = World::new().await;
    let database = Arc::new(world.database.client().await);
    let overtaken = service_fn(move |request: Request<()>| {
        let database = database.clone();
        async move {
            insert(&request).await?;
            let another = "UPDATE campanile.entry SET token = token + 1, owner = 1";
            database.batch_execute(another).await?;
            Ok::<_, BoxError>(())
        }
    });
    let error = world.run(overtaken, "b-1").await.unwrap_err();
    let Some(IdempotencyError::LockLost(lost)) = IdempotencyError::find(&*error) else {
        panic!("{error:?}");
    };
    assert_eq!(lost.cause, LostCause::Superseded);
    assert_eq!(world.booked("b-1"), "0|0");
    assert_eq!(world.entry(), "P|1");
    world.assert_all_ended().await;
}

#[tokio::test]
async fn a_request_without_a_key_that_is_let_through_has_its_transaction_too() {
    let world = World::new().await;
    let layer = world.guarded().with_missing_key(OnMissingKey::PassThrough);
    let handler = service_fn(async |request: Request<()>| {
        let transaction = Transaction::of(&request)?;
        transaction.execute("INSERT INTO ledger VALUES ('none', 1)", &[]).await?;
        Ok::<_, BoxError>(())
    });
    let keyless = Request::new(campanile_core::Record::builder("bookings", 0, 7).build(), ());
    let outcome = world.inbox.layer(layer).unwrap().layer(handler).oneshot(keyless).await.unwrap();
    assert_eq!(outcome, Outcome::Unguarded((), Unguarded::MissingKey));
    assert_eq!(world.booked("none"), "1|1");
    world.assert_all_ended().await;
}

#[tokio::test]
async fn a_request_that_is_let_through_is_no_success_if_its_transaction_was_rolled_back() {
    let world = World::new().await;
    let layer = world.guarded().with_missing_key(OnMissingKey::PassThrough);
    let layer = world.inbox.layer(layer).unwrap();
    for end in ["SELECT 1 / 0", "ROLLBACK"] {
        let handler = service_fn(async move |request: Request<()>| {
            let transaction = Transaction::of(&request)?;
            transaction.execute("INSERT INTO ledger VALUES ('none', 1)", &[]).await?;
            let _ = transaction.batch_execute(end).await;
            Ok::<_, BoxError>(())
        });
        let keyless = Request::new(campanile_core::Record::builder("bookings", 0, 7).build(), ());
        let error = layer.layer(handler).oneshot(keyless).await.unwrap_err();
        let found = campanile_core::error::find::<InboxError>(&*error);
        let is_told = match found.unwrap() {
            InboxError::NotCommitted(error) => error.code().unwrap().code() == "25P02",
            error => matches!(error, InboxError::EndedByHandler) && end == "ROLLBACK",
        };
        assert!(is_told, "{end}: {error:?}");
        assert_eq!(world.booked("none"), "0|0");
        world.assert_all_ended().await;
    }
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_takes_with_it_what_came_after_it_and_no_more() {
    let world = World::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let transaction = Transaction::of(&request)?;
        transaction.batch_execute("SAVEPOINT second").await?;
        let refused = transaction.batch_execute("INSERT INTO ledger VALUES (NULL, 1)").await;
        assert_eq!(refused.unwrap_err().code().unwrap().code(), "23502");
        transaction.batch_execute("ROLLBACK TO SAVEPOINT second").await?;
        Ok::<_, BoxError>(())
    });
    assert_eq!(world.run(handler, "b-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!(world.booked("b-1"), "1|100");
}

#[tokio::test]
async fn a_failed_statement_that_the_handler_passes_over_commits_nothing() {
    let world = World::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let _ = Transaction::of(&request)?.batch_execute("SELECT 1 / 0").await;
        Ok::<_, BoxError>(())
    });
    let error = world.run(handler, "b-1").await.unwrap_err();
    assert_not_committed(&world, &error, "25P02").await;
}

#[tokio::test]
async fn a_constraint_that_is_checked_at_the_commit_is_the_handlers_failure() {
    let world = World::new().await;
    world.database.psql(
        "CREATE TABLE account (id int PRIMARY KEY);
         CREATE TABLE booking (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED)",
    );
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Transaction::of(&request)?.execute("INSERT INTO booking VALUES (7)", &[]).await?;
        Ok::<_, BoxError>(())
    });
    let error = world.run(handler, "b-1").await.unwrap_err();
    assert_not_committed(&world, &error, "23503").await;
}

#[tokio::test]
async fn a_statement_that_takes_longer_than_the_url_allows_is_the_handlers_failure() {
    let World { database, .. } = World::new().await;
    let url = format!("{}?options=-c%20statement_timeout%3D100", database.url());
    let store = PgStore::connect(patient(&url)).await.unwrap();
    let world = World { inbox: Inbox::new(&store).unwrap(), database };
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Transaction::of(&request)?.execute("SELECT pg_sleep(60)", &[]).await?;
        Ok::<_, BoxError>(())
    });
    let error = world.run(handler, "b-1").await.unwrap_err();
    let said = campanile_core::error::find::<tokio_postgres::Error>(&*error).unwrap();
    assert_eq!(said.code(), Some(&SqlState::QUERY_CANCELED));
    assert_eq!((world.booked("b-1"), world.entry()), ("0|0".into(), "R|1".into()));
    world.assert_all_ended().await;
}

async fn assert_not_committed(world: &World, error: &BoxError, state: &str) {
    let found = campanile_core::error::find::<InboxError>(&**error);
    let Some(InboxError::NotCommitted(error)) = found else {
        panic!("{error:?}");
    };
    assert_eq!(error.code().unwrap().code(), state);
    assert_eq!(world.booked("b-1"), "0|0");
    assert_eq!(world.entry(), "R|1");
    world.assert_all_ended().await;
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_itself_does_not_complete_its_entry() {
    for (end, booked) in [("ROLLBACK", "0|0"), ("COMMIT", "1|100"), ("COMMIT AND CHAIN", "1|100")] {
        let world = World::new().await;
        let handler = service_fn(async move |request: Request<()>| {
            insert(&request).await?;
            Transaction::of(&request)?.batch_execute(end).await?;
            Ok::<_, BoxError>(())
        });
        let error = world.run(handler, "b-1").await.unwrap_err();
        let found = campanile_core::error::find::<InboxError>(&*error);
        assert!(matches!(found, Some(InboxError::EndedByHandler)), "{end}: {error:?}");
        let Some(IdempotencyError::Failed(failed)) = IdempotencyError::find(&*error) else {
            panic!("{error:?}");
        };
        assert_eq!(failed.disposition, Disposition::DeadLetter);
        // Even if nothing publishes the dead letter, the handler does not run again, because it
        // would commit again.
        drop(error);
        world.wait_for("SELECT doomed AND at <= clock_timestamp() FROM campanile.entry").await;
        assert_eq!((&*world.booked("b-1"), &*world.entry()), (booked, "R|1"), "{end}");
        world.assert_all_ended().await;
        let error = world.run(service_fn(book), "b-1").await.unwrap_err();
        let found = IdempotencyError::find(&*error);
        assert!(matches!(found, Some(IdempotencyError::Exhausted(_))), "{error:?}");
        assert_eq!(world.booked("b-1"), booked);
    }
}

#[tokio::test]
async fn nothing_is_written_over_a_connection_whose_transaction_was_not_begun() {
    let world = World::new().await;
    let handler = service_fn(async |request: Request<()>| {
        Transaction::of(&request)?.batch_execute("ROLLBACK").await?;
        let refused = insert(&request).await.unwrap_err();
        let state = campanile_core::error::find(&*refused).and_then(TransactionError::code);
        assert_eq!(state.unwrap().code(), "25006");
        Err::<(), _>(refused)
    });
    world.run(handler, "b-1").await.unwrap_err();
    assert_eq!((&*world.booked("b-1"), &*world.entry()), ("0|0", "R|1"));
}

#[tokio::test]
async fn a_handle_that_outlives_its_handler_can_do_nothing() {
    let world = World::new().await;
    let (send, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let handler = service_fn(move |request: Request<()>| {
        let send = send.clone();
        async move {
            let _ = send.send(Transaction::of(&request)?.clone());
            book(request).await
        }
    });
    world.run(handler, "b-1").await.unwrap();
    let transaction = kept.recv().await.unwrap();
    let late = transaction.execute("INSERT INTO ledger VALUES ('late', 1)", &[]).await;
    assert!(matches!(late, Err(TransactionError::Ended)), "{late:?}");
    assert_eq!(world.booked("late"), "0|0");
}

#[tokio::test]
async fn a_handler_that_leaves_a_statement_running_commits_nothing() {
    let world = World::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let connection = Transaction::of(&request)?.connection()?;
        tokio::spawn(async move {
            let _ = connection.batch_execute("SELECT pg_sleep(1)").await;
            let _ = connection.batch_execute("INSERT INTO ledger VALUES ('late', 1)").await;
        });
        Ok::<_, BoxError>(())
    });
    let error = world.run(handler, "b-1").await.unwrap_err();
    let found = campanile_core::error::find::<InboxError>(&*error);
    assert!(matches!(found, Some(InboxError::InUse)), "{error:?}");
    world.assert_all_ended().await;
    assert_eq!((&*world.booked("b-1"), &*world.booked("late")), ("0|0", "0|0"));
    assert_eq!(world.entry(), "R|1");
}

#[tokio::test]
async fn a_layer_whose_locks_are_elsewhere_is_refused() {
    let world = World::new().await;
    let elsewhere = IdempotencyLayer::new(MemoryStore::new(), "ledger", key::header("id")).unwrap();
    let error = world.inbox.layer(elsewhere).unwrap_err();
    assert!(error.to_string().contains("inbox.keeper()"), "{error}");
}

#[tokio::test]
async fn a_handler_for_which_no_connection_comes_free_hands_its_attempt_back() {
    // Long enough for the first handler to open a connection, even on a busy machine.
    let max_wait = Duration::from_secs(3);
    let world =
        World::new().await.with(|inbox| inbox.with_connections(1).unwrap().with_max_wait(max_wait));
    let (began, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let signals = (began.clone(), go_on.clone());
    let service = world.layer().layer(service_fn(move |request| {
        let (began, go_on) = signals.clone();
        async move {
            began.notify_one();
            go_on.notified().await;
            book(request).await
        }
    }));
    let mut first = tokio::spawn(service.oneshot(request("b-1")));
    tokio::select! {
        () = began.notified() => {}
        ended = &mut first => panic!("the handler did not run: {ended:?}"),
    }
    let error = world.run(service_fn(book), "b-2").await.unwrap_err();
    let told = campanile_core::error::sources(&*error).map(ToString::to_string);
    let told: Vec<_> = told.collect();
    assert!(told.iter().any(|text| text.contains("1 of at most 1 connections")), "{told:?}");
    assert_eq!(world.database.psql("SELECT attempt FROM campanile.entry WHERE state = 'R'"), "0");
    go_on.notify_one();
    first.await.unwrap().unwrap();
    world.run(service_fn(book), "b-2").await.unwrap();
}
