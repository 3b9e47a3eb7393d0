//! Transaction conflicts: the handler runs again, and no attempt is counted for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::error::{self, NotRun};
use campanile_core::{BoxError, Disposition, Outcome, Request};
use campanile_idempotency::{IdempotencyError, StoreError, StoreErrorKind};
use campanile_postgres::{InboxError, Transaction};
use tokio::sync::Barrier;
use tower::service_fn;

use crate::fixture::{Fixture, book, insert};
use crate::support::chain;

/// Runs a handler that raises this state in its first `first` runs, and counts its runs.
async fn run_raising(
    fixture: &Fixture,
    state: &'static str,
    first: u32,
) -> (Result<Outcome<()>, BoxError>, u32) {
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    let handler = service_fn(move |request: Request<()>| {
        let run = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            insert(&request).await?;
            if run < first {
                let raise = format!("DO $$BEGIN RAISE SQLSTATE '{state}'; END$$");
                Transaction::from_request(&request)?.batch_execute(&raise).await?;
            }
            Ok::<_, BoxError>(())
        }
    });
    let result = fixture.run(handler, "b-1").await;
    (result, count.load(Ordering::Relaxed))
}

#[tokio::test]
async fn conflicting_transaction_reruns_in_same_attempt() {
    for state in ["40001", "40P01"] {
        let fixture = Fixture::new().await;
        let (result, runs) = run_raising(&fixture, state, 2).await;
        assert_eq!((result.unwrap(), runs), (Outcome::Processed(()), 3), "{state}");
        assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"), "{state}");
        fixture.assert_no_open_transaction().await;
    }
}

#[tokio::test]
async fn other_database_error_is_a_handler_failure() {
    let fixture = Fixture::new().await;
    let (result, runs) = run_raising(&fixture, "22012", 1).await;
    result.unwrap_err();
    assert_eq!((runs, &*fixture.entry()), (1, "R|1"));
}

#[tokio::test]
async fn unavailable_dependency_rolls_back_and_counts_no_attempt() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Err::<(), BoxError>(error::unavailable("connection refused").into())
    });
    let error = fixture.run(handler, "b-1").await.unwrap_err();
    let Some(IdempotencyError::AttemptFailed(failed)) = IdempotencyError::find(&*error) else {
        panic!("{error:?}");
    };
    assert_eq!(failed.disposition, Disposition::Unavailable { dependency: None });
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("0|0", "R|0"));
}

#[tokio::test]
async fn persistent_conflict_is_given_up_and_releases_attempt() {
    let fixture = Fixture::new().await.with(|inbox| inbox.with_max_reruns(2));
    let (result, runs) = run_raising(&fixture, "40001", u32::MAX).await;
    let error = result.unwrap_err();
    let found = error::find::<InboxError>(&*error).unwrap();
    assert!(matches!(found, InboxError::RolledBack { runs: 3, .. }), "{error:?}");
    assert_eq!(found.to_string(), "the transaction was rolled back in each of 3 runs");
    assert!(error::find::<NotRun>(&*error).is_none(), "{error:?}");
    let Some(IdempotencyError::AttemptFailed(failed)) = IdempotencyError::find(&*error) else {
        panic!("{error:?}");
    };
    assert_eq!((failed.disposition, runs), (Disposition::Release, 3));
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("0|0", "R|0"));
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn connection_kept_by_an_earlier_run_is_no_reason_to_run_for_ever() {
    // Long enough for the first run to open a connection, even on a busy machine.
    let max_wait = Duration::from_secs(10);
    let fixture = Fixture::with_config(|config| config.with_inbox_connections(1)).await;
    let fixture = fixture.with(|inbox| inbox.with_max_wait(max_wait));
    let kept = Arc::new(Mutex::new(None));
    let keeping = kept.clone();
    let handler = service_fn(move |request: Request<()>| {
        let kept = keeping.clone();
        async move {
            let transaction = Transaction::from_request(&request)?;
            *kept.lock().unwrap() = Some(transaction.connection()?);
            let conflict = "DO $$BEGIN RAISE SQLSTATE '40001'; END$$";
            transaction.batch_execute(conflict).await.map_err(BoxError::from)
        }
    });
    let error = fixture.run(handler, "b-1").await.unwrap_err();
    let found = error::find::<InboxError>(&*error).unwrap();
    assert_eq!(found.to_string(), "no connection available in the last of 1 attempts");
    let Some(IdempotencyError::AttemptFailed(failed)) = IdempotencyError::find(&*error) else {
        panic!("{error:?}");
    };
    assert_eq!(failed.disposition, Disposition::Release);
    drop(kept.lock().unwrap().take());
}

/// Runs two handlers concurrently. In their first runs, neither executes its second statement
/// before both have executed their first. Both must succeed on the first attempt.
async fn run_concurrently(fixture: &Fixture, statements: [[&'static str; 2]; 2]) {
    let barrier = Arc::new(Barrier::new(2));
    let both = statements.map(|[first, second]| {
        let (barrier, runs) = (barrier.clone(), Arc::new(AtomicU32::new(0)));
        service_fn(move |request: Request<()>| {
            let (barrier, run) = (barrier.clone(), runs.fetch_add(1, Ordering::Relaxed));
            async move {
                let transaction = Transaction::from_request(&request)?;
                transaction.batch_execute(first).await?;
                if run == 0 {
                    barrier.wait().await;
                }
                transaction.batch_execute(second).await?;
                insert(&request).await?;
                Ok::<_, BoxError>(run)
            }
        })
    });
    let [one, other] = both;
    let (one, other) = tokio::join!(fixture.run(one, "b-1"), fixture.run(other, "b-2"));
    let runs = [one.unwrap(), other.unwrap()].map(|outcome| match outcome {
        Outcome::Processed(run) => run,
        _ => panic!("{outcome:?}"),
    });
    assert!(runs.iter().any(|run| *run > 0), "no conflict: {runs:?}");
    assert_eq!(fixture.entry(), "C|1\nC|1");
    assert_eq!((&*fixture.booked("b-1"), &*fixture.booked("b-2")), ("1|100", "1|100"));
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn deadlocked_transactions_both_commit_after_one_reruns() {
    let fixture = Fixture::new().await;
    fixture
        .database
        .psql("CREATE TABLE account (id int, cents int); INSERT INTO account VALUES (1), (2)");
    let (one, two) =
        ("UPDATE account SET cents = 1 WHERE id = 1", "UPDATE account SET cents = 1 WHERE id = 2");
    run_concurrently(&fixture, [[one, two], [two, one]]).await;
}

#[tokio::test]
async fn unserializable_transactions_both_commit_after_one_reruns() {
    let fixture = Fixture::new().await;
    fixture.database.psql("CREATE TABLE duty (name text)");
    let read = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM duty";
    let write = "INSERT INTO duty VALUES ('off')";
    run_concurrently(&fixture, [[read, write], [read, write]]).await;
}

#[tokio::test]
async fn repeatable_read_conflicting_update_reruns() {
    let fixture = Fixture::new().await;
    fixture.database.psql("CREATE TABLE account (cents int); INSERT INTO account VALUES (0)");
    let read = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT cents FROM account";
    let write = "UPDATE account SET cents = cents + 1";
    run_concurrently(&fixture, [[read, write], [read, write]]).await;
    assert_eq!(fixture.database.psql("SELECT cents FROM account"), "2");
}

#[tokio::test]
async fn statement_on_altered_table_is_prepared_again_in_same_attempt() {
    let fixture = Fixture::new().await;
    fixture.database.psql("CREATE TABLE account (cents int); INSERT INTO account VALUES (7)");
    let handler = service_fn(async |request: Request<()>| {
        let rows = Transaction::from_request(&request)?.query("SELECT * FROM account", &[]).await?;
        Ok::<_, BoxError>(rows[0].len())
    });
    assert_eq!(fixture.run(handler, "b-1").await.unwrap(), Outcome::Processed(1));
    fixture.database.psql("ALTER TABLE account ADD COLUMN name text");
    assert_eq!(fixture.run(handler, "b-2").await.unwrap(), Outcome::Processed(2));
    assert_eq!(fixture.entry(), "C|1\nC|1");
}

/// More often than an interrupted attempt may be handed back.
const MANY_RUNS: u32 = 12;

#[tokio::test]
async fn server_unable_to_commit_never_costs_an_attempt() {
    for state in ["42501", "53100"] {
        let fixture = Fixture::new().await;
        let name = "campanile.conclude(space text, asked bytea, its_token bigint, its_owner bigint, \
                    its_reply bytea, its_details bytea, retention bigint)";
        let original =
            fixture.database.psql("SELECT pg_get_functiondef('campanile.conclude'::regproc)");
        fixture.database.psql(&format!(
            "CREATE OR REPLACE FUNCTION {name} RETURNS timestamptz LANGUAGE plpgsql \
             AS $$BEGIN RAISE SQLSTATE '{state}'; END$$"
        ));
        for _ in 0..MANY_RUNS {
            let error = fixture.run(service_fn(book), "b-1").await.unwrap_err();
            let found = error::find::<StoreError>(&*error);
            assert_eq!(found.unwrap().kind(), StoreErrorKind::Unavailable, "{error:?}");
            assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("0|0", "R|0"), "{state}");
        }
        fixture.database.psql(&original);
        fixture.run(service_fn(book), "b-1").await.unwrap();
        assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"), "{state}");
    }
}

#[tokio::test]
async fn full_disk_in_a_handlers_statement_never_costs_an_attempt() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        let fill = "DO $$BEGIN RAISE SQLSTATE '53100'; END$$";
        Transaction::from_request(&request)?.batch_execute(fill).await.map_err(BoxError::from)
    });
    for _ in 0..MANY_RUNS {
        let error = fixture.run(handler, "b-1").await.unwrap_err();
        let found = error::find::<StoreError>(&*error);
        assert_eq!(found.unwrap().kind(), StoreErrorKind::Unavailable, "{error:?}");
        assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("0|0", "R|0"));
    }
}

#[tokio::test]
async fn handler_without_connection_never_costs_an_attempt() {
    let fixture = Fixture::new().await.without_inbox_connections().await;
    let fixture = fixture.with(|inbox| inbox.with_max_reruns(0));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let handler = service_fn(move |request: Request<()>| {
        counted.fetch_add(1, Ordering::Relaxed);
        book(request)
    });
    let entry = || fixture.database.psql("SELECT attempt FROM campanile.entry WHERE state = 'R'");
    for _ in 0..MANY_RUNS {
        let error = fixture.run(handler.clone(), "b-1").await.unwrap_err();
        let text = chain(&*error);
        assert!(text.contains("no connection available") && text.contains("too many"), "{text}");
        assert_eq!((&*entry(), calls.load(Ordering::Relaxed)), ("0", 0));
    }
    fixture.limit_connections(-1);
    assert_eq!(fixture.run(handler, "b-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!((&*fixture.booked("b-1"), calls.load(Ordering::Relaxed)), ("1|100", 1));
}
