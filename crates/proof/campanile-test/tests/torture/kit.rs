//! The kit reaches each await, does the same for each seed, and says what is wrong with its use.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, Outcome, Record, Request, WithLock};
use campanile_idempotency::{IdempotencyLayer, LockKeeper, MemoryStore};
use campanile_test::torture::{Failure, Report, point, torture};
use futures_util::future::join;
use tokio::task::spawn_blocking;
use tower::{ServiceBuilder, service_fn};

use crate::shop::{Shop, layer, record, stack, torture_handler};

type Answer = Result<Outcome<()>, BoxError>;

/// Notes at which await a handler was dropped.
struct Dropped {
    at: usize,
    seen: Arc<Mutex<BTreeSet<usize>>>,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.seen.lock().unwrap().insert(self.at);
    }
}

#[test]
fn handler_is_dropped_at_each_await() {
    for awaits in 0..6 {
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let dropped_at = seen.clone();
        let wait = move |shop: Shop, request: Request<String>| {
            let seen = dropped_at.clone();
            async move {
                let mut dropped = Dropped { at: 0, seen };
                for at in 1..=awaits {
                    dropped.at = at;
                    tokio::time::sleep(Duration::from_secs(at as u64)).await;
                }
                dropped.at = awaits + 1;
                shop.effects().upsert(request.body(), None);
                Ok(())
            }
        };
        let report = torture_handler(wait, |effects| effects.check_rows()).unwrap();
        assert_eq!(report.awaits, awaits);
        assert_eq!(*seen.lock().unwrap(), (1..=awaits + 1).collect());
    }
}

#[test]
fn bug_at_any_await_is_found() {
    for buggy in 1..6 {
        let append = move |shop: Shop, request: Request<String>| async move {
            for at in 1..6 {
                if at == buggy {
                    shop.effects().entries.push(request.body().clone());
                }
                point("step").await;
            }
            Ok(())
        };
        let failure = torture_handler(append, |effects| effects.check_entries()).unwrap_err();
        let at = format!("dropped at await {buggy} of attempt 1 (step), then delivered again: ");
        assert_eq!(failure.story, at + "2 entries of p-1, expected 1");
    }
}

/// Tortures a handler with a bug that needs two faults.
fn torture_with_two_faults(seed: u64) -> Result<Report, Failure> {
    async fn append(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        point("started").await;
        let attempt = request.lock().unwrap().attempt();
        if attempt > 2 || shop.effects().entries.is_empty() {
            shop.effects().entries.push(request.body().clone());
        }
        point("appended").await;
        Ok(())
    }
    let torture = torture(
        async || Shop::default(),
        async |shop, keeper| Ok(stack(layer(keeper)?, shop, append)),
        async |shop: Shop| shop.effects().check_entries(),
    );
    torture.with_seed(seed).run([record("p-1")])
}

#[test]
fn two_faults_are_shrunk_to_the_simplest() {
    // without that, the process is suspended in attempt 1 and killed in attempt 2
    let failure = torture_with_two_faults(5).unwrap_err();
    assert_eq!(
        failure.story,
        "dropped at await 1 of attempt 1 (started), then delivered again, \
         then dropped at await 2 of attempt 2 (appended), then delivered again: \
         2 entries of p-1, expected 1"
    );
    assert!(failure.report.situations < 1_000, "{failure}");
}

#[test]
fn bug_behind_the_length_of_the_first_attempt_is_found() {
    async fn recover(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        let id = request.body().clone();
        let attempt = request.lock().unwrap().attempt();
        point("started").await;
        if shop.effects().rows.contains_key(&id) {
            return Ok(());
        }
        if attempt > 1 {
            for _ in 0..4 {
                point("looked up").await;
            }
            shop.effects().entries.push(id.clone());
            point("recovered").await;
        } else {
            shop.effects().entries.push(id.clone());
        }
        shop.effects().rows.insert(id, 5);
        Ok(())
    }
    let failure = torture_handler(recover, |effects| effects.check_entries()).unwrap_err();
    assert_eq!(
        failure.story,
        "dropped at await 1 of attempt 1 (started), then delivered again, \
         then dropped at await 6 of attempt 2 (recovered), then delivered again: \
         2 entries of p-1, expected 1"
    );
}

#[test]
fn seed_determines_the_report() {
    let failures: Vec<_> = (0..8).map(|seed| torture_with_two_faults(seed).unwrap_err()).collect();
    let again: Vec<_> = (0..8).map(|seed| torture_with_two_faults(seed).unwrap_err()).collect();
    assert_eq!(failures, again);
    let situations: BTreeSet<_> = failures.iter().map(|it| it.report.situations).collect();
    assert!(situations.len() > 1, "each seed has the same situations");
}

#[test]
fn several_records_are_told_apart() {
    async fn append(shop: Shop, request: Request<String>) -> Result<(), BoxError> {
        point("started").await;
        shop.append(request.body()).await;
        Ok(())
    }
    let torture = torture(
        async || Shop::default(),
        async |shop, keeper| Ok(stack(layer(keeper)?, shop, append)),
        async |shop: Shop| shop.effects().check_entries(),
    );
    // the third one is a duplicate of the second one
    let failure = torture.run([record("p-2"), record("p-1"), record("p-1")]).unwrap_err();
    assert_eq!(
        failure.to_string(),
        "record 2 of 3 dropped at await 3 of attempt 1 (appended), then delivered again: \
         2 entries of p-1, expected 1 (13 situations, awaits of handlers: 6, seed: 0)"
    );
}

#[test]
fn run_without_records_fails() {
    let torture = torture(
        async || (),
        async |(), _| Ok(service_fn(async |_: Record| pending::<Answer>().await)),
        async |()| Ok::<_, BoxError>(()),
    );
    assert_eq!(torture.run([]).unwrap_err().story, "without a fault: there are no records");
}

#[tokio::test]
#[should_panic(expected = "use `#[test]` instead of `#[tokio::test]`")]
async fn run_on_a_runtime_panics() {
    let torture = torture(
        async || (),
        async |(), _| Ok(service_fn(async |_: Record| pending::<Answer>().await)),
        async |()| Ok::<_, BoxError>(()),
    );
    let _ = torture.run([record("p-1")]);
}

#[test]
fn failing_check_needs_no_fault() {
    async fn nothing(_: Shop, _: Request<String>) -> Result<(), BoxError> {
        Ok(())
    }
    let failure = torture_handler(nothing, |effects| effects.check_rows()).unwrap_err();
    assert_eq!(failure.story, "without a fault: 0 rows of p-1, expected 1");
    assert_eq!(failure.report.situations, 1);
}

#[test]
fn record_that_is_never_completed_fails() {
    let result = torture(
        async || (),
        async |(), _| Ok(service_fn(async |_: Record| Err::<Outcome<()>, BoxError>("busy".into()))),
        async |()| Ok::<_, BoxError>(()),
    )
    .run([record("p-1")]);
    let story = result.unwrap_err().story;
    let again = "without a fault; delivered again 99 times: ";
    assert_eq!(story, format!("{again}not completed after 100 deliveries: busy"));
}

#[test]
fn stack_that_hangs_fails() {
    let result = torture(
        async || (),
        async |(), _| Ok(service_fn(async |_: Record| pending::<Answer>().await)),
        async |()| Ok::<_, BoxError>(()),
    )
    .run([record("p-1")]);
    let story = result.unwrap_err().story;
    assert_eq!(story, "without a fault: the stack has not answered within 3600s");
}

#[test]
fn requests_need_not_be_records() {
    let torture = torture(
        async || Shop::default(),
        async |shop: Shop, keeper| {
            Ok(ServiceBuilder::new()
                .map_request(WithLock::new)
                .layer(IdempotencyLayer::new(keeper, "jobs", |job: &WithLock<&'static str>| **job)?)
                .service_fn(move |job: WithLock<&'static str>| {
                    let shop = shop.clone();
                    async move {
                        shop.upsert(*job, None).await;
                        Ok::<_, BoxError>(())
                    }
                }))
        },
        async |shop: Shop| shop.effects().check_rows(),
    );
    assert_eq!(torture.run(["p-1"]).unwrap().awaits, 2);
}

#[test]
fn other_keeper_is_reported() {
    async fn nothing(_: Shop, _: Request<String>) -> Result<(), BoxError> {
        Ok(())
    }
    let torture = torture(
        async || Shop::default(),
        async |shop, _| Ok(stack(layer(LockKeeper::new(MemoryStore::new())?)?, shop, nothing)),
        async |_| Ok::<_, BoxError>(()),
    );
    let story = torture.run([record("p-1")]).unwrap_err().story;
    assert!(story.starts_with("without a fault: no lock was acquired;"), "{story}");
}

#[test]
fn stack_that_is_not_created_is_reported() {
    let torture = torture(
        async || (),
        async |(), _| {
            Err::<tower::util::BoxCloneService<Record, Outcome<()>, BoxError>, _>("no route".into())
        },
        async |()| Ok::<_, BoxError>(()),
    );
    let story = torture.run([record("p-1")]).unwrap_err().story;
    assert_eq!(story, "without a fault: the stack was not created: no route");
}

/// Appends on another thread, as a server on the network would.
async fn append_elsewhere(shop: &Shop, payment: &str, is_upsert: bool) -> Result<(), BoxError> {
    let (request, requested) = channel();
    let (shop, payment) = (shop.clone(), payment.to_owned());
    let append = spawn_blocking(move || {
        requested.recv().unwrap();
        let mut effects = shop.effects();
        if !is_upsert || !effects.entries.contains(&payment) {
            effects.entries.push(payment);
        }
    });
    // polls the task before the request, so that the handler always waits once
    let (appended, _) = join(append, async { request.send(()) }).await;
    Ok(appended?)
}

fn torture_in_real_time(is_upsert: bool) -> Result<Report, Failure> {
    let torture = torture(
        async || Shop::default(),
        async |shop, keeper| {
            let append = move |shop: Shop, request: Request<String>| async move {
                append_elsewhere(&shop, request.body(), is_upsert).await
            };
            Ok(stack(layer(keeper)?, shop, append))
        },
        async |shop: Shop| shop.effects().check_entries(),
    );
    torture.with_real_time().run([record("p-1")])
}

#[test]
fn real_time_finds_the_same() {
    let failure = torture_in_real_time(false).unwrap_err();
    assert_eq!(
        failure.story,
        "dropped at await 1 of attempt 1, then delivered again: 2 entries of p-1, expected 1"
    );
    assert_eq!(torture_in_real_time(true).unwrap().awaits, 1);
}
