//! Many handlers with steps, in processes that crash at random points.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, LockHandle};
use campanile_idempotency::{Backoff, WaitForLock};
use campanile_test::faults::Fault;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::harness::{HOUR, Harness, lock, request};

const ORDERS: usize = 1_000;
const CRASHES: usize = 15;

/// What the steps have done, by order and name.
#[derive(Default)]
struct Effects {
    runs: HashMap<(String, usize), usize>,
    /// The results that handlers were given.
    results: HashMap<(String, usize), u64>,
    /// Steps that ran after a handler was given their result, or that had two results.
    violations: Vec<String>,
}

type Shared = Arc<Mutex<Effects>>;

fn millis(range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(range))
}

async fn handle(effects: Shared, lock: LockHandle) -> Result<(), BoxError> {
    let order = lock.key().to_text().into_owned();
    for number in 0..3 {
        let step = (order.clone(), number);
        sleep(millis(0..50)).await;
        let run = async || {
            sleep(millis(0..50)).await;
            lock.check()?;
            {
                let mut effects = effects.lock().unwrap();
                *effects.runs.entry(step.clone()).or_default() += 1;
                if effects.results.contains_key(&step) {
                    effects.violations.push(format!("{step:?} ran again"));
                }
            }
            sleep(millis(0..50)).await;
            Ok::<_, BoxError>(fastrand::u64(..))
        };
        let result = lock.step(&number.to_string(), run).await?;
        let mut effects = effects.lock().unwrap();
        let first = *effects.results.entry(step.clone()).or_insert(result);
        if first != result {
            effects.violations.push(format!("{step:?} has two results"));
        }
    }
    if fastrand::u8(0..10) == 0 { Err("gateway busy".into()) } else { Ok(()) }
}

fn deliver(process: &Harness, effects: &Shared) -> JoinSet<bool> {
    let layer = process.layer_with(|config| {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100)).unwrap();
        let config = config.with_lock_ttl(Duration::from_secs(2)).with_max_hold(HOUR);
        config.with_backoff(backoff).with_max_attempts(1_000)
    });
    let effects = effects.clone();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(HOUR).retrying_failures())
        .layer(layer)
        .service(service_fn(move |request| handle(effects.clone(), lock(&request))));
    let ids = (0..ORDERS).map(|number| request(&format!("o-{number}")));
    ids.map(|request| {
        let mut service = service.clone();
        async move {
            sleep(millis(0..3_000)).await;
            service.ready().await.unwrap().call(request).await.is_ok()
        }
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn recorded_step_never_runs_again_in_any_crash() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    fastrand::seed(seed);
    let effects = Shared::default();
    let mut process = Harness::new();
    let mut processes = Vec::new();
    for _ in 0..CRASHES {
        let odds = [(0.02, Fault::LoseReply), (0.02, Fault::Refuse), (0.005, Fault::HangReply)];
        process.store.inject_randomly(fastrand::u64(..), odds);
        let deliveries = deliver(&process, &effects);
        sleep(millis(100..2_000)).await;
        process.crash().await;
        drop(deliveries);
        let next = process.other_process();
        processes.push(std::mem::replace(&mut process, next));
    }
    let outcomes = deliver(&process, &effects).join_all().await;
    assert!(outcomes.iter().all(|&is_ok| is_ok), "an order was given up");
    process.assert_settled().await;
    let effects = effects.lock().unwrap();
    let repeated = effects.runs.values().filter(|runs| **runs > 1).count();
    println!(
        "{} steps, {repeated} ran again before they were recorded, {} after it",
        effects.runs.len(),
        effects.violations.len()
    );
    assert_eq!(effects.violations, [""; 0]);
    assert_eq!(effects.results.len(), 3 * ORDERS);
    assert!(repeated > 0, "no step was interrupted");
    drop(processes);
}
