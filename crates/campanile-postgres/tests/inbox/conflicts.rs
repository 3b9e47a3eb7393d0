//! Transaction conflicts: the handler runs again, and no attempt is counted for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use campanile_core::{BoxError, Disposition, Outcome, Request, error};
use campanile_idempotency::{IdempotencyError, StoreError, StoreErrorKind};
use campanile_postgres::{Inbox, InboxError, Isolation, PgStore, Transaction};
use tokio::sync::Barrier;
use tower::service_fn;

use crate::support::{acquired, chain, key, patient};
use crate::world::{World, book, insert};

/// Runs a handler that raises this state in its first `first` runs. Returns its result and the
/// number of runs.
async fn run_raising(
    world: &World,
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
                Transaction::of(&request)?.batch_execute(&raise).await?;
            }
            Ok::<_, BoxError>(())
        }
    });
    let result = world.run(handler, "b-1").await;
    (result, count.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_transaction_that_met_another_is_run_again_as_the_same_attempt() {
    for state in ["40001", "40P01"] {
        let world = World::new().await;
        let (result, runs) = run_raising(&world, state, 2).await;
        assert_eq!((result.unwrap(), runs), (Outcome::Processed(()), 3), "{state}");
        assert_eq!((&*world.booked("b-1"), &*world.entry()), ("1|100", "C|1"), "{state}");
        world.assert_all_ended().await;
    }
}

#[tokio::test]
async fn another_error_of_the_database_is_the_handlers_failure() {
    let world = World::new().await;
    let (result, runs) = run_raising(&world, "22012", 1).await;
    result.unwrap_err();
    assert_eq!((runs, &*world.entry()), (1, "R|1"));
}

#[tokio::test]
async fn one_that_always_meets_another_is_given_up_and_its_attempt_handed_back() {
    let world = World::new().await.with(|inbox| inbox.with_max_reruns(2));
    let (result, runs) = run_raising(&world, "40001", u32::MAX).await;
    let error = result.unwrap_err();
    let found = error::find::<InboxError>(&*error);
    assert!(matches!(found, Some(InboxError::GivenUp { runs: 3, .. })), "{error:?}");
    let Some(IdempotencyError::Failed(failed)) = IdempotencyError::find(&*error) else {
        panic!("{error:?}");
    };
    assert_eq!((failed.disposition, runs), (Disposition::Release, 3));
    assert_eq!((&*world.booked("b-1"), &*world.entry()), ("0|0", "R|0"));
    world.assert_all_ended().await;
}

/// Runs two handlers concurrently. In their first runs, neither executes its second statement
/// before both have executed their first. Both must succeed on the first attempt.
async fn run_two(world: &World, statements: [[&'static str; 2]; 2]) {
    let together = Arc::new(Barrier::new(2));
    let both = statements.map(|[first, second]| {
        let (together, runs) = (together.clone(), Arc::new(AtomicU32::new(0)));
        service_fn(move |request: Request<()>| {
            let (together, run) = (together.clone(), runs.fetch_add(1, Ordering::Relaxed));
            async move {
                let transaction = Transaction::of(&request)?;
                transaction.batch_execute(first).await?;
                if run == 0 {
                    together.wait().await;
                }
                transaction.batch_execute(second).await?;
                insert(&request).await?;
                Ok::<_, BoxError>(run)
            }
        })
    });
    let [one, other] = both;
    let (one, other) = tokio::join!(world.run(one, "b-1"), world.run(other, "b-2"));
    let runs = [one.unwrap(), other.unwrap()].map(|outcome| match outcome {
        Outcome::Processed(run) => run,
        _ => panic!("{outcome:?}"),
    });
    assert!(runs.iter().any(|run| *run > 0), "no conflict: {runs:?}");
    assert_eq!(world.entry(), "C|1\nC|1");
    assert_eq!((&*world.booked("b-1"), &*world.booked("b-2")), ("1|100", "1|100"));
    world.assert_all_ended().await;
}

#[tokio::test]
async fn of_two_transactions_in_a_deadlock_one_is_run_again_and_both_are_committed() {
    let world = World::new().await;
    world
        .database
        .psql("CREATE TABLE account (id int, cents int); INSERT INTO account VALUES (1), (2)");
    let (one, two) =
        ("UPDATE account SET cents = 1 WHERE id = 1", "UPDATE account SET cents = 1 WHERE id = 2");
    run_two(&world, [[one, two], [two, one]]).await;
}

#[tokio::test]
async fn of_two_transactions_that_cannot_be_serialized_one_is_run_again_and_both_are_committed() {
    let world = World::new().await.with(|inbox| inbox.with_isolation(Isolation::Serializable));
    world.database.psql("CREATE TABLE duty (name text)");
    let (look, go) = ("SELECT count(*) FROM duty", "INSERT INTO duty VALUES ('off')");
    run_two(&world, [[look, go], [look, go]]).await;
}

#[tokio::test]
async fn a_repeatable_read_that_meets_another_update_is_run_again() {
    let world = World::new().await.with(|inbox| inbox.with_isolation(Isolation::RepeatableRead));
    world.database.psql("CREATE TABLE account (cents int); INSERT INTO account VALUES (0)");
    let (look, add) = ("SELECT cents FROM account", "UPDATE account SET cents = cents + 1");
    run_two(&world, [[look, add], [look, add]]).await;
    assert_eq!(world.database.psql("SELECT cents FROM account"), "2");
}

#[tokio::test]
async fn a_statement_whose_table_was_altered_is_prepared_again_as_the_same_attempt() {
    let world = World::new().await;
    world.database.psql("CREATE TABLE account (cents int); INSERT INTO account VALUES (7)");
    let handler = service_fn(async |request: Request<()>| {
        let rows = Transaction::of(&request)?.query("SELECT * FROM account", &[]).await?;
        Ok::<_, BoxError>(rows[0].len())
    });
    assert_eq!(world.run(handler, "b-1").await.unwrap(), Outcome::Processed(1));
    world.database.psql("ALTER TABLE account ADD COLUMN name text");
    assert_eq!(world.run(handler, "b-2").await.unwrap(), Outcome::Processed(2));
    assert_eq!(world.entry(), "C|1\nC|1");
}

/// More often than an interrupted attempt may be handed back.
const OFTEN: u32 = 12;

#[tokio::test]
async fn a_commit_that_the_server_cannot_make_costs_no_attempt_however_often() {
    for state in ["42501", "53100"] {
        let world = World::new().await;
        let name = "campanile.conclude(space text, asked bytea, its_token bigint, its_owner bigint, \
                    its_reply bytea, retention bigint)";
        let concludes = world
            .database
            .psql("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'conclude'");
        world.database.psql(&format!(
            "CREATE OR REPLACE FUNCTION {name} RETURNS timestamptz LANGUAGE plpgsql \
             AS $$BEGIN RAISE SQLSTATE '{state}'; END$$"
        ));
        for _ in 0..OFTEN {
            let error = world.run(service_fn(book), "b-1").await.unwrap_err();
            let found = error::find::<StoreError>(&*error);
            assert_eq!(found.unwrap().kind(), StoreErrorKind::Unavailable, "{error:?}");
            assert_eq!((&*world.booked("b-1"), &*world.entry()), ("0|0", "R|0"), "{state}");
        }
        world.database.psql(&concludes);
        world.run(service_fn(book), "b-1").await.unwrap();
        assert_eq!((&*world.booked("b-1"), &*world.entry()), ("1|100", "C|1"), "{state}");
    }
}

#[tokio::test]
async fn a_handler_that_gets_no_connection_costs_no_attempt_however_often() {
    let world = World::new().await;
    world.database.psql(
        "CREATE ROLE app_of_few_connections LOGIN; \
         GRANT USAGE ON SCHEMA campanile TO app_of_few_connections; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app_of_few_connections; \
         GRANT ALL ON ledger TO app_of_few_connections",
    );
    let url = world.database.url().replace("//postgres@", "//app_of_few_connections@");
    let store = PgStore::connect(patient(&url)).await.unwrap();
    let world = world.with(|_| Inbox::new(&store).unwrap().with_max_reruns(0));
    // The store takes the only connection, so there is none for the inbox.
    acquired(&store, &key("other"), 1).await;
    world.database.psql("ALTER ROLE app_of_few_connections CONNECTION LIMIT 1");
    let entry = || world.database.psql("SELECT attempt FROM campanile.entry WHERE state = 'R'");
    for _ in 0..OFTEN {
        let error = world.run(service_fn(book), "b-1").await.unwrap_err();
        let text = chain(&*error);
        assert!(text.contains("no connection available") && text.contains("too many"), "{text}");
        assert_eq!(entry(), "0");
    }
    world.database.psql("ALTER ROLE app_of_few_connections CONNECTION LIMIT -1");
    assert_eq!(world.run(service_fn(book), "b-1").await.unwrap(), Outcome::Processed(()));
}
