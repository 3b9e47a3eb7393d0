//! A handler's writes and its entry are committed together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, Disposition, LostCause, Outcome, Request, WithoutLock, key};
use campanile_idempotency::policy::{OnLocked, OnMissingKey};
use campanile_idempotency::{IdempotencyError, IdempotencyLayer, MemoryStore, reply};
use campanile_postgres::{Inbox, InboxError, PgStore, Transaction, TransactionError};
use futures_util::FutureExt;
use tokio::sync::{Notify, Semaphore};
use tokio_postgres::error::SqlState;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::fixture::{Fixture, book, insert, request};
use crate::support::{EVENT_TIMEOUT, long_timeouts};

#[tokio::test]
async fn handler_writes_commit_once_together_with_the_entry() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.run(service_fn(book), "b-1").await.unwrap(), Outcome::Processed(()));
    assert!(fixture.run(service_fn(book), "b-1").await.unwrap().is_duplicate());
    assert_eq!(fixture.booked("b-1"), "1|100");
    assert_eq!(fixture.entry(), "C|1");
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn handler_reads_its_own_writes() {
    let fixture = Fixture::new().await;
    let reads = service_fn(async |request: Request<()>| {
        let cents = async || {
            let transaction = Transaction::from_request(&request)?;
            let rows = transaction.query("SELECT cents FROM ledger", &[]).await?;
            Ok::<Option<i64>, BoxError>(rows.first().map(|row| row.try_get(0)).transpose()?)
        };
        let before = cents().await?;
        insert(&request).await?;
        Ok::<_, BoxError>((before, cents().await?))
    });
    assert_eq!(fixture.run(reads, "b-1").await.unwrap(), Outcome::Processed((None, Some(100))));
}

#[tokio::test]
async fn failed_handler_rolls_back_and_counts_an_attempt() {
    let fixture = Fixture::new().await;
    let fails = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Err::<(), BoxError>("no such account".into())
    });
    fixture.run(fails, "b-1").await.unwrap_err();
    assert_eq!(fixture.booked("b-1"), "0|0");
    assert_eq!(fixture.entry(), "R|1");
    fixture.assert_no_open_transaction().await;
    assert_eq!(fixture.run(service_fn(book), "b-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!(fixture.entry(), "C|2");
}

#[tokio::test]
async fn panicking_handler_rolls_back_and_counts_an_attempt() {
    let fixture = Fixture::new().await;
    let panics = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let account: Option<()> = None;
        account.ok_or_else(|| -> BoxError { panic!("no such account") })
    });
    fixture.run(panics, "b-1").await.unwrap_err();
    fixture.assert_no_open_transaction().await;
    assert_eq!(fixture.booked("b-1"), "0|0");
    assert_eq!(fixture.entry(), "R|1");
}

#[tokio::test]
async fn duplicate_gets_the_committed_reply() {
    let fixture = Fixture::new().await;
    let layer = fixture.inbox.layer(fixture.idempotency_layer().with_reply(reply::json())).unwrap();
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
async fn completed_entry_keeps_details_only_if_configured() {
    let fixture = Fixture::new().await;
    let details = "SELECT d.key, d.record FROM campanile.entry e \
        CROSS JOIN campanile.describe(e.details) d";
    for (is_kept, id, shown) in [(false, "b-1", "|"), (true, "b-2", "b-2|bookings/0@7")] {
        let layer = fixture.idempotency_layer_with(|config| config.with_completed_details(is_kept));
        let service = fixture.inbox.layer(layer).unwrap().layer(service_fn(book));
        service.clone().oneshot(request(id)).await.unwrap();
        assert_eq!(fixture.database.psql(details), shown);
        assert!(service.oneshot(request(id)).await.unwrap().is_duplicate());
        fixture.database.psql("DELETE FROM campanile.entry");
    }
}

#[tokio::test]
async fn waiter_is_answered_when_the_transaction_commits() {
    let fixture = Fixture::new().await;
    let layer = fixture.idempotency_layer().on_locked(OnLocked::Wait { at_most: EVENT_TIMEOUT });
    let (began, resume) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let signals = (began.clone(), resume.clone());
    let service = fixture.inbox.layer(layer).unwrap().layer(service_fn(move |request| {
        let (began, resume) = signals.clone();
        async move {
            began.notify_one();
            resume.notified().await;
            book(request).await
        }
    }));
    let first = tokio::spawn(service.clone().oneshot(request("b-1")));
    began.notified().await;
    let second = tokio::spawn(service.oneshot(request("b-1")));
    resume.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), Outcome::Processed(()));
    assert!(second.await.unwrap().unwrap().is_duplicate());
    assert_eq!(fixture.booked("b-1"), "1|100");
}

#[tokio::test]
async fn superseded_lock_commits_nothing() {
    let fixture = Fixture::new().await;
    let database = Arc::new(fixture.database.client().await);
    let superseded = service_fn(move |request: Request<()>| {
        let database = database.clone();
        async move {
            insert(&request).await?;
            let another = "UPDATE campanile.entry SET token = token + 1, owner = 1";
            database.batch_execute(another).await?;
            Ok::<_, BoxError>(())
        }
    });
    let error = fixture.run(superseded, "b-1").await.unwrap_err();
    let Some(IdempotencyError::LockLost(lost)) = IdempotencyError::find(&*error) else {
        panic!("{error:?}");
    };
    assert_eq!(lost.cause, LostCause::Superseded);
    assert_eq!(fixture.booked("b-1"), "0|0");
    assert_eq!(fixture.entry(), "P|1");
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn keyless_request_passed_through_has_a_transaction() {
    let fixture = Fixture::new().await;
    let layer = fixture.idempotency_layer().on_missing_key(OnMissingKey::PassThrough);
    let handler = service_fn(async |request: Request<()>| {
        let transaction = Transaction::from_request(&request)?;
        transaction.execute("INSERT INTO ledger VALUES ('none', 1)", &[]).await?;
        Ok::<_, BoxError>(())
    });
    let keyless = Request::new(campanile_core::Record::builder("bookings", 0, 7).build(), ());
    let outcome =
        fixture.inbox.layer(layer).unwrap().layer(handler).oneshot(keyless).await.unwrap();
    assert_eq!(outcome, Outcome::WithoutLock((), WithoutLock::MissingKey));
    assert_eq!(fixture.booked("none"), "1|1");
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn keyless_request_fails_if_its_transaction_rolls_back() {
    let fixture = Fixture::new().await;
    let layer = fixture.idempotency_layer().on_missing_key(OnMissingKey::PassThrough);
    let layer = fixture.inbox.layer(layer).unwrap();
    for end in ["SELECT 1 / 0", "ROLLBACK"] {
        let handler = service_fn(async move |request: Request<()>| {
            let transaction = Transaction::from_request(&request)?;
            transaction.execute("INSERT INTO ledger VALUES ('none', 1)", &[]).await?;
            let _ = transaction.batch_execute(end).await;
            Ok::<_, BoxError>(())
        });
        let keyless = Request::new(campanile_core::Record::builder("bookings", 0, 7).build(), ());
        let error = layer.layer(handler).oneshot(keyless).await.unwrap_err();
        let found = campanile_core::error::find::<InboxError>(&*error);
        let is_expected = match found.unwrap() {
            InboxError::NotCommitted(error) => error.code().unwrap().code() == "25P02",
            error => matches!(error, InboxError::EndedByHandler) && end == "ROLLBACK",
        };
        assert!(is_expected, "{end}: {error:?}");
        assert_eq!(fixture.booked("none"), "0|0");
        fixture.assert_no_open_transaction().await;
    }
}

#[tokio::test]
async fn savepoint_rollback_undoes_only_later_statements() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let transaction = Transaction::from_request(&request)?;
        transaction.batch_execute("SAVEPOINT second").await?;
        let refused = transaction.batch_execute("INSERT INTO ledger VALUES (NULL, 1)").await;
        assert_eq!(refused.unwrap_err().code().unwrap().code(), "23502");
        transaction.batch_execute("ROLLBACK TO SAVEPOINT second").await?;
        Ok::<_, BoxError>(())
    });
    assert_eq!(fixture.run(handler, "b-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!(fixture.booked("b-1"), "1|100");
}

#[tokio::test]
async fn ignored_statement_error_commits_nothing() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let _ = Transaction::from_request(&request)?.batch_execute("SELECT 1 / 0").await;
        Ok::<_, BoxError>(())
    });
    let error = fixture.run(handler, "b-1").await.unwrap_err();
    assert_not_committed(&fixture, &error, "25P02").await;
}

#[tokio::test]
async fn deferred_constraint_violation_is_a_handler_failure() {
    let fixture = Fixture::new().await;
    fixture.database.psql(
        "CREATE TABLE account (id int PRIMARY KEY);
         CREATE TABLE booking (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED)",
    );
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Transaction::from_request(&request)?.execute("INSERT INTO booking VALUES (7)", &[]).await?;
        Ok::<_, BoxError>(())
    });
    let error = fixture.run(handler, "b-1").await.unwrap_err();
    assert_not_committed(&fixture, &error, "23503").await;
}

#[tokio::test]
async fn statement_timeout_of_the_url_is_a_handler_failure() {
    let Fixture { database, .. } = Fixture::new().await;
    // Long enough for the statements of `connect`, which it limits, too.
    let url = format!("{}?options=-c%20statement_timeout%3D3000", database.url());
    let store = PgStore::connect(long_timeouts(&url)).await.unwrap();
    let fixture = Fixture { inbox: Inbox::new(&store).unwrap(), database };
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Transaction::from_request(&request)?.execute("SELECT pg_sleep(60)", &[]).await?;
        Ok::<_, BoxError>(())
    });
    let error = fixture.run(handler, "b-1").await.unwrap_err();
    let database_error = campanile_core::error::find::<tokio_postgres::Error>(&*error).unwrap();
    assert_eq!(database_error.code(), Some(&SqlState::QUERY_CANCELED));
    assert_eq!((fixture.booked("b-1"), fixture.entry()), ("0|0".into(), "R|1".into()));
    fixture.assert_no_open_transaction().await;
}

async fn assert_not_committed(fixture: &Fixture, error: &BoxError, state: &str) {
    let found = campanile_core::error::find::<InboxError>(&**error);
    let Some(InboxError::NotCommitted(error)) = found else {
        panic!("{error:?}");
    };
    assert_eq!(error.code().unwrap().code(), state);
    assert_eq!(fixture.booked("b-1"), "0|0");
    assert_eq!(fixture.entry(), "R|1");
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn handler_ending_its_transaction_does_not_complete_the_entry() {
    for (end, booked) in [("ROLLBACK", "0|0"), ("COMMIT", "1|100"), ("COMMIT AND CHAIN", "1|100")] {
        let fixture = Fixture::new().await;
        let handler = service_fn(async move |request: Request<()>| {
            insert(&request).await?;
            Transaction::from_request(&request)?.batch_execute(end).await?;
            Ok::<_, BoxError>(())
        });
        let error = fixture.run(handler, "b-1").await.unwrap_err();
        let found = campanile_core::error::find::<InboxError>(&*error);
        assert!(matches!(found, Some(InboxError::EndedByHandler)), "{end}: {error:?}");
        let Some(IdempotencyError::AttemptFailed(failed)) = IdempotencyError::find(&*error) else {
            panic!("{error:?}");
        };
        assert_eq!(failed.disposition, Disposition::DeadLetter);
        // Even if nothing publishes the dead letter, the handler does not run again, because it
        // would commit again.
        drop(error);
        fixture
            .database
            .wait_for("SELECT permanent_failure AND at <= clock_timestamp() FROM campanile.entry")
            .await;
        assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), (booked, "R|1"), "{end}");
        fixture.assert_no_open_transaction().await;
        let error = fixture.run(service_fn(book), "b-1").await.unwrap_err();
        let found = IdempotencyError::find(&*error);
        assert!(matches!(found, Some(IdempotencyError::Exhausted(_))), "{error:?}");
        assert_eq!(fixture.booked("b-1"), booked);
    }
}

#[tokio::test]
async fn handler_failing_after_its_own_commit_is_not_run_again() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Transaction::from_request(&request)?.batch_execute("COMMIT").await?;
        // Refused, because the connection is read-only outside of the transaction.
        insert(&request).await
    });
    for _ in 0..3 {
        fixture.run(handler, "b-1").await.unwrap_err();
    }
    fixture
        .database
        .wait_for("SELECT permanent_failure AND state = 'R' FROM campanile.entry")
        .await;
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "R|1"));
}

/// The runtime has only this thread, so BEGIN is not even sent while the handler blocks it.
#[tokio::test]
async fn handler_blocking_its_thread_is_run_once() {
    const LIMIT: Duration = Duration::from_secs(3);
    let fixture = Fixture::new().await;
    let config = fixture.database.config().with_command_timeout(LIMIT);
    let store = PgStore::connect(config).await.unwrap();
    let fixture = fixture.with(|_| Inbox::new(&store).unwrap());
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let handler = service_fn(move |request: Request<()>| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(2 * LIMIT);
        book(request)
    });
    fixture.run(handler, "b-1").await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), &*fixture.booked("b-1")), (1, "1|100"));
}

#[tokio::test]
async fn connection_without_transaction_rejects_writes() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        Transaction::from_request(&request)?.batch_execute("ROLLBACK").await?;
        let refused = insert(&request).await.unwrap_err();
        let state = campanile_core::error::find(&*refused).and_then(TransactionError::code);
        assert_eq!(state.unwrap().code(), "25006");
        Err::<(), _>(refused)
    });
    fixture.run(handler, "b-1").await.unwrap_err();
    fixture
        .database
        .wait_for("SELECT permanent_failure AND state = 'R' FROM campanile.entry")
        .await;
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("0|0", "R|1"));
}

#[tokio::test]
async fn transaction_outliving_its_handler_is_unusable() {
    let fixture = Fixture::new().await;
    let (send, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let handler = service_fn(move |request: Request<()>| {
        let send = send.clone();
        async move {
            let _ = send.send(Transaction::from_request(&request)?.clone());
            book(request).await
        }
    });
    fixture.run(handler, "b-1").await.unwrap();
    let transaction = kept.recv().await.unwrap();
    let late = transaction.execute("INSERT INTO ledger VALUES ('late', 1)", &[]).await;
    let late = late.unwrap_err();
    assert!(matches!(late, TransactionError::Ended), "{late:?}");
    assert!(late.to_string().contains("the handler has returned"), "{late}");
    assert_eq!(fixture.booked("late"), "0|0");
}

#[tokio::test]
async fn http_handler_writes_in_its_transaction() {
    let fixture = Fixture::new().await;
    let by_path = |request: &http::Request<()>| Some(request.uri().path().as_bytes().to_vec());
    let layer = IdempotencyLayer::new(fixture.inbox.keeper(), "ledger", by_path).unwrap();
    let handler = service_fn(async |request: http::Request<()>| {
        let booking = "INSERT INTO ledger VALUES ('b-1', 100)";
        Transaction::from_request(&request)?.execute(booking, &[]).await?;
        Ok::<_, BoxError>(())
    });
    let service = fixture.inbox.layer(layer).unwrap().layer(handler);
    let request = http::Request::put("/bookings/b-1").body(()).unwrap();
    assert_eq!(service.oneshot(request).await.unwrap(), Outcome::Processed(()));
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"));
}

#[tokio::test]
async fn service_is_ready_once_the_handler_is() {
    let fixture = Fixture::new().await;
    let permits = Arc::new(Semaphore::new(0));
    let handler = ConcurrencyLimit::with_semaphore(service_fn(book), permits.clone());
    let mut service = fixture.layer().layer(handler);
    assert!(service.ready().now_or_never().is_none());
    permits.add_permits(1);
    service.ready().await.unwrap().call(request("b-1")).await.unwrap();
    assert_eq!(fixture.booked("b-1"), "1|100");
}

#[tokio::test]
async fn handler_leaving_a_statement_running_commits_nothing() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let connection = Transaction::from_request(&request)?.connection()?;
        tokio::spawn(async move {
            let _ = connection.batch_execute("SELECT pg_sleep(1)").await;
            let _ = connection.batch_execute("INSERT INTO ledger VALUES ('late', 1)").await;
        });
        Ok::<_, BoxError>(())
    });
    let error = fixture.run(handler, "b-1").await.unwrap_err();
    let found = campanile_core::error::find::<InboxError>(&*error);
    assert!(matches!(found, Some(InboxError::TransactionInUse)), "{error:?}");
    fixture.assert_no_open_transaction().await;
    assert_eq!((&*fixture.booked("b-1"), &*fixture.booked("late")), ("0|0", "0|0"));
    assert_eq!(fixture.entry(), "R|1");
}

#[tokio::test]
async fn layer_with_locks_in_another_store_is_rejected() {
    let fixture = Fixture::new().await;
    let elsewhere = IdempotencyLayer::new(MemoryStore::new(), "ledger", key::header("id")).unwrap();
    let error = fixture.inbox.layer(elsewhere).unwrap_err();
    assert!(error.to_string().contains("inbox.keeper()"), "{error}");
}

#[tokio::test]
async fn connection_wait_timeout_releases_the_attempt() {
    // Long enough for the first handler to open a connection, even on a busy machine.
    let max_wait = Duration::from_secs(10);
    let fixture = Fixture::with_config(|config| config.with_inbox_connections(1)).await;
    let fixture = fixture.with(|inbox| inbox.with_max_wait(max_wait));
    let (began, resume) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let signals = (began.clone(), resume.clone());
    let service = fixture.layer().layer(service_fn(move |request| {
        let (began, resume) = signals.clone();
        async move {
            began.notify_one();
            resume.notified().await;
            book(request).await
        }
    }));
    let mut first = tokio::spawn(service.oneshot(request("b-1")));
    tokio::select! {
        () = began.notified() => {}
        ended = &mut first => panic!("the handler did not run: {ended:?}"),
    }
    let never =
        service_fn(async |_: Request<()>| -> Result<(), BoxError> { panic!("it is called") });
    let error = fixture.run(never, "b-2").await.unwrap_err();
    let texts = campanile_core::error::sources(&*error).map(ToString::to_string);
    let texts: Vec<_> = texts.collect();
    assert!(texts.iter().any(|text| text.contains("1 of at most 1 connections")), "{texts:?}");
    assert_eq!(fixture.database.psql("SELECT attempt FROM campanile.entry WHERE state = 'R'"), "0");
    resume.notify_one();
    first.await.unwrap().unwrap();
    fixture.run(service_fn(book), "b-2").await.unwrap();
}
