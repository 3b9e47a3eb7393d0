//! Drops the inbox's future at every await point: no transaction stays open, and the entry matches
//! what was written.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use campanile_core::{BoxError, Outcome, Request};
use campanile_postgres::Transaction;
use futures_util::FutureExt;
use tokio::task::yield_now;
use tower::{Layer, ServiceExt, service_fn};

use crate::lost_commits;
use crate::world::{World, book, insert, request};

const ASLEEP: &str = "SELECT count(*) = 1 FROM pg_stat_activity \
                      WHERE datname = current_database() AND wait_event = 'PgSleep'";

#[derive(Clone, Copy, Debug)]
enum Case {
    Succeeds,
    Fails,
    Panics,
    /// The first run conflicts with another transaction.
    IsRunAgain,
}

/// Polls a future `at` times and then drops it, at once or, if `woken`, at the next wake-up.
/// Returns whether the future completed before.
async fn cut<T>(future: impl Future<Output = T>, at: usize, woken: bool) -> bool {
    let mut future: Option<Pin<Box<_>>> = Some(Box::pin(AssertUnwindSafe(future).catch_unwind()));
    let mut polls = 0;
    poll_fn(|cx| {
        if polls < at {
            polls += 1;
            if let Some(Poll::Ready(_)) = future.as_mut().map(|future| future.as_mut().poll(cx)) {
                return Poll::Ready(true);
            }
            if polls < at || woken {
                return Poll::Pending;
            }
        }
        future = None;
        Poll::Ready(false)
    })
    .await
}

async fn handle(
    case: Case,
    has_run: Arc<AtomicBool>,
    request: Request<()>,
) -> Result<(), BoxError> {
    insert(&request).await?;
    yield_now().await;
    match case {
        Case::Succeeds => {}
        Case::Fails => return Err("no such account".into()),
        // Like a panic, but without its message.
        Case::Panics => resume_unwind(Box::new("requested by the test")),
        Case::IsRunAgain if has_run.swap(true, Ordering::Relaxed) => {}
        Case::IsRunAgain => {
            let raise = "DO $$BEGIN RAISE SQLSTATE '40001'; END$$";
            Transaction::of(&request)?.batch_execute(raise).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_future_dropped_at_any_await_leaves_no_transaction_open_and_nothing_half_done() {
    let world = World::new().await;
    let mut cuts = 0;
    for case in [Case::Succeeds, Case::Fails, Case::Panics, Case::IsRunAgain] {
        for woken in [false, true] {
            for at in 0.. {
                let id = format!("{case:?}-{woken}-{at}");
                let has_run = Arc::new(AtomicBool::new(false));
                let handler = service_fn(move |request| handle(case, has_run.clone(), request));
                let has_ended = cut(world.run(handler, &id), at, woken).await;
                assert_settles(&world, &id).await;
                if has_ended {
                    break;
                }
                cuts += 1;
            }
        }
    }
    println!("{cuts} cuts");
    assert!(cuts > 40, "only {cuts} await points were tested");
}

/// Asserts that nothing stays open, that the row and the entry either both exist or both do not,
/// and that the next delivery leaves exactly one row.
async fn assert_settles(world: &World, id: &str) {
    world.assert_all_ended().await;
    world.wait_for("SELECT count(*) = 0 FROM campanile.entry WHERE state = 'P'").await;
    let is_booked = world.booked(id) != "0|0";
    let outcome = world.run(service_fn(book), id).await.unwrap();
    let expected =
        if is_booked { outcome.is_duplicate() } else { outcome == Outcome::Processed(()) };
    assert!(expected, "{id}: booked before: {is_booked}, then: {outcome:?}");
    assert_eq!(world.booked(id), "1|100", "{id}");
}

#[tokio::test]
async fn a_statement_at_work_ends_when_its_handler_is_dropped() {
    let world = World::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Transaction::of(&request)?.batch_execute("SELECT pg_sleep(600)").await?;
        Ok::<_, BoxError>(())
    });
    tokio::select! {
        ended = world.run(handler, "b-1") => panic!("{ended:?}"),
        () = world.wait_for(ASLEEP) => {}
    }
    world.assert_all_ended().await;
    assert_eq!(world.booked("b-1"), "0|0");
}

/// While psql waits, nothing else runs on this thread, so only the server can have ended the
/// statement.
#[tokio::test]
async fn rows_of_a_client_that_has_vanished_are_free_before_its_lock_is_over() {
    let (world, proxy) = lost_commits::world().await;
    world.database.psql("INSERT INTO ledger VALUES ('shared', 0)");
    let handler = service_fn(async |request: Request<()>| {
        let work = "UPDATE ledger SET cents = 1 WHERE key = 'shared'; SELECT pg_sleep(600)";
        Ok::<_, BoxError>(Transaction::of(&request)?.batch_execute(work).await?)
    });
    let running = tokio::spawn(world.layer().layer(handler).oneshot(request("b-1")));
    world.wait_for(ASLEEP).await;
    proxy.cut();
    // A lock lives for 30 s.
    let update = "SET lock_timeout = '25s'; UPDATE ledger SET cents = 2 WHERE key = 'shared'";
    world.database.psql(update);
    assert_eq!(world.booked("shared"), "1|2");
    running.abort();
}

/// A machine that vanishes closes no connection; these settings then end its session.
#[tokio::test]
async fn sessions_probe_their_clients_more_often_than_a_lock_lives() {
    let world = World::new().await;
    let handler = service_fn(async |request: Request<()>| {
        let shown = "SELECT current_setting('tcp_keepalives_idle')::int \
            + current_setting('tcp_keepalives_interval')::int * current_setting('tcp_keepalives_count')::int, \
            current_setting('tcp_user_timeout')";
        let row = Transaction::of(&request)?.query_one(shown, &[]).await?;
        Ok::<_, BoxError>((row.get(0), row.get(1)))
    });
    let outcome: Outcome<(i32, String)> = world.run(handler, "b-1").await.unwrap();
    assert_eq!(outcome, Outcome::Processed((25, "25000".to_owned())));
}
