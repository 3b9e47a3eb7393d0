//! Random processes, keys and requests, over a store with faults; and the invariants that hold
//! throughout.
//!
//! * Under one keeper, at most one handler runs per key; over all keepers, at most one has a valid
//!   lock.
//! * A keeper has at most one command per key in flight.
//! * Tokens increase; at most one of them completes a key; a handler runs only under a granted
//!   token.
//! * Nothing waits forever: every request ends, every record is released, every keeper settles all
//!   its locks, and every key is final or can be acquired.
//! * No keeper panics.
//!
//! `CAMPANILE_SIMULATION_CASES` sets the number of cases, and `CAMPANILE_SIMULATION_SEED` repeats
//! one case: with the same plan and the same faults, although events at the same instant may occur
//! in another order.

mod handlers;
mod history;
mod plan;
mod process;
mod requests;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use campanile_core::Outcome;
use campanile_idempotency::{IdempotencyError, MemoryStore};
use campanile_test::TestClock;
use fastrand::Rng;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use self::handlers::Handlers;
use self::history::History;
use self::plan::Plan;
use self::process::Process;
use crate::harness::HOUR;

/// What all processes of a simulation share.
struct Environment {
    plan: Plan,
    clock: TestClock,
    memory: MemoryStore,
    history: History,
    handlers: Handlers,
}

#[test]
fn invariants_hold_under_random_faults() {
    let read = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    if let Some(seed) = read("CAMPANILE_SIMULATION_SEED") {
        return simulate(seed);
    }
    let cases = read("CAMPANILE_SIMULATION_CASES").unwrap_or(600);
    let first = fastrand::u64(..1 << 48);
    println!("seeds {first} to {}", first + cases);
    for seed in first..first + cases {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| simulate(seed))) {
            println!("to repeat this case, set CAMPANILE_SIMULATION_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

fn simulate(seed: u64) {
    fastrand::seed(seed); // the keepers' jitter and nonces
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(run(Rng::with_seed(seed)));
}

async fn run(mut rng: Rng) {
    let clock = TestClock::new();
    let environment = Arc::new(Environment {
        plan: Plan::random(&mut rng),
        memory: MemoryStore::with_clock(clock.store_clock()),
        clock,
        history: History::default(),
        handlers: Handlers::default(),
    });
    let mut processes: Vec<_> =
        (0..environment.plan.processes).map(|_| Process::start(&environment, &mut rng)).collect();
    for _ in 0..environment.plan.events {
        sleep(environment.plan.pause(&mut rng)).await;
        let at = rng.usize(..processes.len());
        match rng.u8(..100) {
            ..80 => processes[at].request(&environment, &mut rng),
            80..88 => processes[at].outage(&mut rng),
            88..94 => environment.clock.advance(environment.plan.ttl.mul_f64(rng.f64() * 2.0)),
            94..97 => {
                let crashed =
                    std::mem::replace(&mut processes[at], Process::start(&environment, &mut rng));
                crashed.crash().await;
            }
            _ => {
                let closed =
                    std::mem::replace(&mut processes[at], Process::start(&environment, &mut rng));
                drop(tokio::spawn(closed.close(false)));
            }
        }
    }
    let ends = processes.into_iter().map(|process| process.close(true));
    timeout(HOUR * 4, join_all(ends)).await.expect("every process ends");
    assert_every_key_finishes(&environment).await;
    environment.handlers.assert_no_violations();
    environment.history.assert_consistent(environment.plan.max_attempts);
}

async fn assert_every_key_finishes(environment: &Arc<Environment>) {
    for key in 0..environment.plan.keys {
        for tries in 0.. {
            assert!(tries < 50, "key {key} is never settled");
            sleep(Duration::from_secs(10 * 60)).await;
            let process = Process::without_faults(environment);
            let result = process.run_to_success(environment, key).await;
            let is_final = match result {
                Ok(Outcome::Processed(_) | Outcome::Duplicate(_) | Outcome::GivenUp(_)) => true,
                Ok(other) => panic!("{other:?}"),
                Err(error) => match IdempotencyError::find(&*error).unwrap() {
                    IdempotencyError::Exhausted(exhausted) => {
                        let lock = exhausted.take_lock().unwrap();
                        lock.give_up("").await.unwrap();
                        true
                    }
                    error => {
                        assert!(error.is_contention(), "{error:?}");
                        false
                    }
                },
            };
            process.close(true).await;
            if is_final {
                break;
            }
        }
    }
}
