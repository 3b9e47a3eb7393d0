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

use crate::fixture::{Fixture, book, insert, request};
use crate::lost_commits;

const SLEEPING: &str = "SELECT count(*) = 1 FROM pg_stat_activity \
                      WHERE datname = current_database() AND wait_event = 'PgSleep'";

#[derive(Clone, Copy, Debug)]
enum Case {
    Succeeds,
    Fails,
    Panics,
    /// The first run conflicts with another transaction.
    Reruns,
}

/// Polls a future `polls` times and then drops it, at once or, if `woken`, at the next wake-up.
/// Checks whether the future completed before.
async fn drop_after_polls<T>(future: impl Future<Output = T>, polls: usize, woken: bool) -> bool {
    let mut future: Option<Pin<Box<_>>> = Some(Box::pin(AssertUnwindSafe(future).catch_unwind()));
    let mut polled = 0;
    poll_fn(|cx| {
        if polled < polls {
            polled += 1;
            if let Some(Poll::Ready(_)) = future.as_mut().map(|future| future.as_mut().poll(cx)) {
                return Poll::Ready(true);
            }
            if polled < polls || woken {
                return Poll::Pending;
            }
        }
        future = None;
        Poll::Ready(false)
    })
    .await
}

async fn handle_case(
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
        Case::Reruns if has_run.swap(true, Ordering::Relaxed) => {}
        Case::Reruns => {
            let raise = "DO $$BEGIN RAISE SQLSTATE '40001'; END$$";
            Transaction::from_request(&request)?.batch_execute(raise).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn dropped_future_leaves_no_open_transaction_or_partial_effect() {
    let fixture = Fixture::new().await;
    let mut drops = 0;
    for case in [Case::Succeeds, Case::Fails, Case::Panics, Case::Reruns] {
        for woken in [false, true] {
            for polls in 0.. {
                let id = format!("{case:?}-{woken}-{polls}");
                let has_run = Arc::new(AtomicBool::new(false));
                let handler =
                    service_fn(move |request| handle_case(case, has_run.clone(), request));
                let has_ended = drop_after_polls(fixture.run(handler, &id), polls, woken).await;
                assert_consistent(&fixture, &id).await;
                if has_ended {
                    break;
                }
                drops += 1;
            }
        }
    }
    println!("{drops} drops");
    assert!(drops > 40, "only {drops} await points were tested");
}

/// Asserts that nothing stays open, that the row and the entry either both exist or both do not,
/// and that the next delivery leaves exactly one row.
async fn assert_consistent(fixture: &Fixture, id: &str) {
    fixture.assert_no_open_transaction().await;
    fixture.database.wait_for("SELECT count(*) = 0 FROM campanile.entry WHERE state = 'P'").await;
    let is_booked = fixture.booked(id) != "0|0";
    let outcome = fixture.run(service_fn(book), id).await.unwrap();
    let expected =
        if is_booked { outcome.is_duplicate() } else { outcome == Outcome::Processed(()) };
    assert!(expected, "{id}: booked before: {is_booked}, then: {outcome:?}");
    assert_eq!(fixture.booked(id), "1|100", "{id}");
}

#[tokio::test]
async fn running_statement_ends_when_its_handler_is_dropped() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        insert(&request).await?;
        Transaction::from_request(&request)?.batch_execute("SELECT pg_sleep(600)").await?;
        Ok::<_, BoxError>(())
    });
    tokio::select! {
        ended = fixture.run(handler, "b-1") => panic!("{ended:?}"),
        () = fixture.database.wait_for(SLEEPING) => {}
    }
    fixture.assert_no_open_transaction().await;
    assert_eq!(fixture.booked("b-1"), "0|0");
}

/// While psql waits, nothing else runs on this thread, so only the server can have ended the
/// statement.
#[tokio::test]
async fn vanished_client_frees_its_rows_before_its_lock_expires() {
    let (fixture, proxy) = lost_commits::fixture_behind_proxy().await;
    fixture.database.psql("INSERT INTO ledger VALUES ('shared', 0)");
    let handler = service_fn(async |request: Request<()>| {
        let work = "UPDATE ledger SET cents = 1 WHERE key = 'shared'; SELECT pg_sleep(600)";
        Ok::<_, BoxError>(Transaction::from_request(&request)?.batch_execute(work).await?)
    });
    let running = tokio::spawn(fixture.layer().layer(handler).oneshot(request("b-1")));
    fixture.database.wait_for(SLEEPING).await;
    let session = fixture.database.psql(&SLEEPING.replace("count(*) = 1", "pid"));
    proxy.cut();
    // A lock lives for 30 s.
    let update = "SET lock_timeout = '25s'; UPDATE ledger SET cents = 2 WHERE key = 'shared'";
    fixture.database.psql(update);
    assert_eq!(fixture.booked("shared"), "1|2");
    let is_gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {session}");
    fixture.database.wait_for(&is_gone).await;
    let is_locked = "SELECT state = 'P' AND at > clock_timestamp() FROM campanile.entry";
    assert_eq!(fixture.database.psql(is_locked), "t");
    running.abort();
}

/// A machine that vanishes closes no connection; these settings then end its session.
#[tokio::test]
async fn session_detects_a_dead_client_within_25_seconds() {
    let fixture = Fixture::new().await;
    let handler = service_fn(async |request: Request<()>| {
        let shown = "SELECT current_setting('tcp_keepalives_idle')::int \
            + current_setting('tcp_keepalives_interval')::int * current_setting('tcp_keepalives_count')::int, \
            current_setting('tcp_user_timeout')";
        let row = Transaction::from_request(&request)?.query_one(shown, &[]).await?;
        Ok::<_, BoxError>((row.get(0), row.get(1)))
    });
    let outcome: Outcome<(i32, String)> = fixture.run(handler, "b-1").await.unwrap();
    assert_eq!(outcome, Outcome::Processed((25, "25000".to_owned())));
}
