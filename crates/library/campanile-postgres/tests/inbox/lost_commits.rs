//! Requests that are sent and not answered; the entry shows whether an unanswered commit took
//! place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, Disposition, Operation, Outcome, Request};
use campanile_idempotency::policy::OnLost;
use campanile_idempotency::{IdempotencyError, reply};
use campanile_postgres::{Inbox, InboxError, PgConfig, PgStore, Transaction};
use campanile_test::Proxy;
use futures_util::future::join_all;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::timeout;
use tokio_postgres::Client;
use tower::{Layer, ServiceExt, service_fn};

use crate::fixture::{Fixture, book, insert, request};
use crate::support::{
    EVENT_TIMEOUT, apply_until_answered, key, long_timeouts, owner, short_timeouts,
};

const SECOND: Duration = Duration::from_secs(1);

type Running = JoinHandle<Result<Outcome<()>, BoxError>>;

/// Creates a fixture with an inbox that connects through a proxy.
pub(crate) async fn fixture_behind_proxy() -> (Fixture, Arc<Proxy>) {
    fixture_behind_proxy_with(long_timeouts).await
}

async fn fixture_behind_proxy_with(config: fn(&str) -> PgConfig) -> (Fixture, Arc<Proxy>) {
    let fixture = Fixture::new().await;
    let (server, name) = fixture.database.url().rsplit_once('/').unwrap();
    let (user, server) = server.rsplit_once('@').unwrap();
    let proxy = Proxy::to(server).unwrap();
    let url = format!("{user}@{}/{name}", proxy.addr());
    let store = PgStore::connect(config(&url)).await.unwrap();
    // Opens the store's connection. No entry remains.
    apply_until_answered(&store, &key("none"), Operation::Cancel { owner: owner(1) }).await;
    (fixture.with(|_| Inbox::new(&store).unwrap()), Arc::new(proxy))
}

/// Starts a handler that applies the nth of `faults` to the proxy in its nth run, after it has
/// written. Also counts its runs.
fn start_with_faults(
    fixture: &Fixture,
    proxy: &Arc<Proxy>,
    faults: &'static [fn(&Proxy)],
) -> (Running, Arc<AtomicU32>) {
    let runs = Arc::new(AtomicU32::new(0));
    let (proxy, counted) = (proxy.clone(), runs.clone());
    let handler = service_fn(move |request: Request<()>| {
        let (proxy, run) = (proxy.clone(), counted.fetch_add(1, Ordering::Relaxed));
        async move {
            insert(&request).await?;
            if let Some(fault) = faults.get(run as usize) {
                fault(&proxy);
            }
            Ok::<_, BoxError>(())
        }
    });
    (tokio::spawn(fixture.layer().layer(handler).oneshot(request("b-1"))), runs)
}

/// Waits until the first run's request is swallowed, and asserts that the second run is then
/// committed, in the same attempt.
async fn assert_second_run_commits(
    fixture: &Fixture,
    proxy: &Proxy,
    running: Running,
    runs: &AtomicU32,
) {
    while proxy.swallowed() == 0 {
        yield_now().await;
    }
    proxy.heal().unwrap();
    assert_eq!(running.await.unwrap().unwrap(), Outcome::Processed(()));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"));
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn commit_with_lost_answer_is_not_rerun() {
    let (fixture, proxy) = fixture_behind_proxy().await;
    let (running, runs) = start_with_faults(&fixture, &proxy, &[Proxy::swallow_replies]);
    fixture.database.wait_for("SELECT state = 'C' FROM campanile.entry").await;
    proxy.heal().unwrap();
    assert_eq!(running.await.unwrap().unwrap(), Outcome::Processed(()));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(fixture.booked("b-1"), "1|100");
    assert!(fixture.run(service_fn(book), "b-1").await.unwrap().is_duplicate());
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn lock_lost_at_commit_counts_no_attempt_under_either_policy() {
    // The commit does not take place, or its answer is lost.
    let cases: [(fn(&Proxy), _, _); 2] =
        [(Proxy::swallow_requests, "0|0", "R|0"), (Proxy::swallow_replies, "1|100", "C|1")];
    let (mut calls, mut expected) = (Vec::new(), Vec::new());
    for policy in [OnLost::Cancel, OnLost::Notify] {
        for (fault, booked, entry) in cases {
            let config = |url: &str| short_timeouts(url).with_command_timeout(SECOND);
            let (fixture, proxy) = fixture_behind_proxy_with(config).await;
            let idempotency_layer =
                fixture.idempotency_layer_with(|config| config.with_lock_ttl(6 * SECOND));
            let layer = fixture.inbox.layer(idempotency_layer.on_lost(policy)).unwrap();
            let faulty = proxy.clone();
            let handler = service_fn(move |request: Request<()>| {
                let faulty = faulty.clone();
                async move {
                    insert(&request).await?;
                    // In effect until the lock is lost.
                    fault(&faulty);
                    Ok::<_, BoxError>(())
                }
            });
            calls.push(layer.layer(handler).oneshot(request("b-1")));
            expected.push((fixture, proxy, policy, booked, entry));
        }
    }
    // At the same time, because each waits until its lock is lost.
    let called = timeout(EVENT_TIMEOUT, join_all(calls)).await;
    let called = called.expect("only a failed attempt waits for the server");
    for (called, (fixture, proxy, policy, booked, entry)) in called.into_iter().zip(expected) {
        let error = called.unwrap_err();
        let error = IdempotencyError::find(&*error).unwrap();
        assert!(matches!(error, IdempotencyError::LockLost(_)), "{policy:?}: {error:?}");
        proxy.heal().unwrap();
        // The attempt is handed back, unless it was committed.
        assert!(fixture.inbox.keeper().shutdown(EVENT_TIMEOUT).await.settled);
        let found = (fixture.booked("b-1"), fixture.entry());
        assert_eq!((&*found.0, &*found.1), (booked, entry), "{policy:?}");
        let store = fixture.database.store().await;
        let fixture = fixture.with(|_| Inbox::new(&store).unwrap());
        let next = fixture.run(service_fn(book), "b-1").await.unwrap();
        assert_eq!(next.is_duplicate(), entry == "C|1", "{policy:?}: {next:?}");
        assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"));
    }
}

#[tokio::test]
async fn commit_not_received_by_server_reruns_in_same_attempt() {
    let (fixture, proxy) = fixture_behind_proxy().await;
    let (running, runs) = start_with_faults(&fixture, &proxy, &[Proxy::swallow_requests]);
    assert_second_run_commits(&fixture, &proxy, running, &runs).await;
}

#[tokio::test]
async fn rerun_with_lost_answer_fails_as_committed_before() {
    let (fixture, proxy) = fixture_behind_proxy().await;
    let layer = fixture.inbox.layer(fixture.idempotency_layer().with_reply(reply::json())).unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let (faulty, counted) = (proxy.clone(), runs.clone());
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let (proxy, run) = (faulty.clone(), counted.fetch_add(1, Ordering::Relaxed));
        async move {
            let booking = "INSERT INTO ledger VALUES ('b-1', $1)";
            let transaction = Transaction::from_request(&request)?;
            transaction.execute(booking, &[&i64::from(run)]).await?;
            match run {
                0 => proxy.swallow_requests(),
                _ => proxy.swallow_replies(),
            }
            Ok::<_, BoxError>(run)
        }
    }));
    let running = tokio::spawn(service.clone().oneshot(request("b-1")));
    while proxy.swallowed() == 0 {
        yield_now().await;
    }
    proxy.heal().unwrap();
    fixture.database.wait_for("SELECT state = 'C' FROM campanile.entry").await;
    proxy.heal().unwrap();
    let error = running.await.unwrap().unwrap_err();
    let found = campanile_core::error::find::<InboxError>(&*error);
    assert!(matches!(found, Some(InboxError::CommittedBefore)), "{error:?}");
    // The reply is that of the run whose booking remains.
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|1", "C|1"));
    let Outcome::Duplicate(duplicate) = service.oneshot(request("b-1")).await.unwrap() else {
        panic!("it was completed");
    };
    assert_eq!((duplicate.reply, runs.load(Ordering::Relaxed)), (Some(1), 2));
}

#[tokio::test]
async fn commit_slower_than_the_command_timeout_is_awaited() {
    let fixture = Fixture::new().await;
    fixture.database.psql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_sleep(5); RETURN NULL; END'; \
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ledger \
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    let config = fixture.database.config().with_command_timeout(Duration::from_secs(3));
    let store = PgStore::connect(config).await.unwrap();
    let fixture = fixture.with(|_| Inbox::new(&store).unwrap());
    assert_eq!(fixture.run(service_fn(book), "b-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"));
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn begin_not_received_by_server_reruns_in_same_attempt() {
    let (fixture, proxy) = fixture_behind_proxy().await;
    let runs = Arc::new(AtomicU32::new(0));
    let (swallowing, counted) = (proxy.clone(), runs.clone());
    let handler = service_fn(move |request: Request<()>| {
        // This thread sends nothing before the handler waits.
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            swallowing.swallow_requests();
        }
        book(request)
    });
    let running = tokio::spawn(fixture.layer().layer(handler).oneshot(request("b-1")));
    assert_second_run_commits(&fixture, &proxy, running, &runs).await;
}

#[tokio::test]
async fn session_terminated_before_commit_reruns_in_same_attempt() {
    let fixture = Arc::new(Fixture::new().await);
    let runs = Arc::new(AtomicU32::new(0));
    let (terminating, counted) = (fixture.clone(), runs.clone());
    let handler = service_fn(move |request: Request<()>| {
        let (fixture, run) = (terminating.clone(), counted.fetch_add(1, Ordering::Relaxed));
        async move {
            insert(&request).await?;
            if run == 0 {
                fixture.database.psql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
                );
            }
            Ok::<_, BoxError>(())
        }
    });
    assert_eq!(fixture.run(handler, "b-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"));
    fixture.assert_no_open_transaction().await;
}

#[tokio::test]
async fn session_terminated_at_a_statement_reruns_in_same_attempt() {
    for (is_returned, ended_runs) in [(true, 1), (false, 1), (true, 3)] {
        let fixture = Fixture::new().await.with(|inbox| inbox.with_max_reruns(2));
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let handler = service_fn(move |request: Request<()>| {
            let run = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                insert(&request).await?;
                if run < ended_runs {
                    let end = "SELECT pg_terminate_backend(pg_backend_pid())";
                    let ended = Transaction::from_request(&request)?.batch_execute(end).await;
                    // The run must also be repeated if the handler discards the database's error.
                    ended.map_err(|error| match is_returned {
                        true => BoxError::from(error),
                        false => error.to_string().into(),
                    })?;
                }
                Ok::<_, BoxError>(())
            }
        });
        let result = fixture.run(handler, "b-1").await;
        let (runs, found) =
            (runs.load(Ordering::Relaxed), (fixture.booked("b-1"), fixture.entry()));
        if ended_runs == 1 {
            assert_eq!(result.unwrap(), Outcome::Processed(()));
            assert_eq!((runs, &*found.0, &*found.1), (2, "1|100", "C|1"));
        } else {
            let error = result.unwrap_err();
            let reason = campanile_core::error::find::<InboxError>(&*error);
            assert!(matches!(reason, Some(InboxError::RolledBack { runs: 3, .. })), "{error:?}");
            assert_eq!((runs, &*found.0, &*found.1), (3, "0|0", "R|0"));
        }
    }
}

#[tokio::test]
async fn run_after_a_late_commit_fails_as_committed_before() {
    let fixture = Fixture::new().await;
    let database = Arc::new(fixture.database.client().await);
    let handler = service_fn(move |request: Request<()>| {
        let database = database.clone();
        async move {
            insert(&request).await?;
            // As the commit of an earlier run does.
            database.batch_execute("UPDATE campanile.entry SET state = 'C'").await?;
            Ok::<_, BoxError>(())
        }
    });
    let error = fixture.run(handler, "b-1").await.unwrap_err();
    let found = campanile_core::error::find::<InboxError>(&*error);
    assert!(matches!(found, Some(InboxError::CommittedBefore)), "{error:?}");
    let Some(IdempotencyError::AttemptFailed(failed)) = IdempotencyError::find(&*error) else {
        panic!("{error:?}");
    };
    assert_eq!(failed.disposition, Disposition::Release);
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("0|0", "C|1"));
    assert!(fixture.run(service_fn(book), "b-1").await.unwrap().is_duplicate());
}

#[tokio::test]
async fn only_one_transaction_of_a_grant_ever_commits() {
    let fixture = Fixture::new().await;
    // A held grant without a running handler. The completion is attempted by hand.
    let (early, late) = (fixture.database.client().await, fixture.database.client().await);
    fixture.database.psql(
        "SELECT * FROM campanile.acquire('ledger', ARRAY['\\x00112233445566778899aabbccddeeff'::bytea], \
         ARRAY[5::bigint], ARRAY[NULL::bigint], ARRAY[0::bigint], NULL, 60000000, 3, 600000000)",
    );
    let begin = "BEGIN; SET LOCAL campanile.inbox = 'open'; INSERT INTO ledger VALUES ('b-1', 100)";
    early.batch_execute(begin).await.unwrap();
    late.batch_execute(begin).await.unwrap();
    let conclude = async |client: &Client| {
        let statement = "SELECT campanile.conclude(namespace, key, token, owner, NULL, NULL, 600000000) \
                     FROM campanile.entry";
        let concluded = client.batch_execute(statement).await;
        client.batch_execute("COMMIT").await.unwrap();
        concluded.map_err(|error| error.code().unwrap().code().to_owned())
    };
    assert_eq!(conclude(&late).await, Ok(()));
    assert_eq!(conclude(&early).await, Err("CI002".to_owned()));
    assert_eq!((&*fixture.booked("b-1"), &*fixture.entry()), ("1|100", "C|1"));
}
