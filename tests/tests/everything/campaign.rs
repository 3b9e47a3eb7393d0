//! The threads of the campaign.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use campanile_test::{KafkaServer, eventually};

use crate::faults::{Faults, Injector};
use crate::length::env_or;
use crate::overload::OverloadWatch;
use crate::scenario::Scenario;
use crate::{broker, load, operator, stores};

/// How much longer than expected the campaign may take before it fails, on a busy machine.
const MAX_SLOWDOWN: f64 = 3.0;

/// The expected time between two faults.
const FAULT_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) fn run() {
    let records = env_or("CAMPANILE_EVERYTHING_RECORDS", 12_000) as usize;
    let min_faults = env_or("CAMPANILE_EVERYTHING_FAULTS", 60) as usize;
    let rate = env_or("CAMPANILE_EVERYTHING_RATE", 180) as f64;
    let seed = env_or("CAMPANILE_STORM_SEED", fastrand::u64(..));
    println!("everything: seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut kafka = broker::start();
    let mut scenarios = Scenario::start_all(&kafka);
    let faults = &Faults::from_env();
    let expected = (records as f64 / rate).max(min_faults as f64 * FAULT_INTERVAL.as_secs_f64());
    let limit = Duration::from_secs_f64(expected * MAX_SLOWDOWN + 60.0);

    let rate = rate / scenarios.len() as f64;
    let recorders: Vec<_> = scenarios.iter().map(Scenario::recorder).collect();
    let clock = recorders[0].clone();
    let start = clock.now();
    let watch = OverloadWatch::start(recorders.clone());
    let bootstrap = kafka.bootstrap();
    thread::scope(|scope| {
        let injector = Injector::new(rng.fork(), recorders, faults);
        scope.spawn(|| {
            let _guard = faults.end_on_panic();
            broker::inject_faults(&mut kafka, injector);
        });
        for scenario in &mut scenarios {
            let recorder = scenario.recorder();
            let Scenario { kind, history, store, processes, topic, keys } = scenario;
            let recorders = vec![recorder.clone()];
            let injector = Injector::new(rng.fork(), recorders.clone(), faults);
            scope.spawn(move || {
                let _guard = faults.end_on_panic();
                processes.inject_faults(history, injector);
            });
            let injector = Injector::new(rng.fork(), recorders.clone(), faults);
            scope.spawn(move || {
                let _guard = faults.end_on_panic();
                stores::inject_faults(&mut **store, injector);
            });
            let (kind, topic, bootstrap) = (&*kind, &*topic, &*bootstrap);
            let rng_of_load = rng.fork();
            scope.spawn(move || {
                let _guard = faults.end_on_panic();
                *keys = load::run(kind, bootstrap, topic, &recorder, rate, faults, rng_of_load);
            });
            let injector = Injector::new(rng.fork(), recorders, faults);
            scope.spawn(move || {
                let _guard = faults.end_on_panic();
                operator::inject_faults(kind, bootstrap, topic, injector);
            });
        }
        let is_long_enough = || {
            let produced = faults.records.load(Ordering::Relaxed);
            let is_done = produced >= records && faults.injected() >= min_faults;
            (is_done || faults.is_over()).then_some(())
        };
        let done = eventually(limit, is_long_enough);
        faults.end();
        done.unwrap_or_else(|| panic!("timed out after {limit:?}: {faults}"));
    });
    let overloaded = finish(&kafka, scenarios, watch, seed);
    let (total, planned) = faults.totals();
    let took = Duration::from_micros(clock.now() - start);
    let overload = match overloaded {
        Duration::ZERO => "the machine was never overloaded".to_owned(),
        time => format!("the machine was overloaded for {time:.1?}"),
    };
    println!(
        "everything: {total} faults and {planned} planned changes in {took:.0?}: {faults}; {overload}; \
         seed {seed}"
    );
}

/// Waits until all groups have committed everything, and judges each of them.
/// Returns for how long the machine was too busy.
fn finish(
    kafka: &KafkaServer,
    mut scenarios: Vec<Scenario>,
    watch: OverloadWatch,
    seed: u64,
) -> Duration {
    // All are awaited and judged, also if one of them fails.
    let mut failed = Vec::new();
    for scenario in &mut scenarios {
        let name = scenario.kind.name;
        let waited = || scenario.wait_until_committed(kafka);
        if thread::scope(|scope| scope.spawn(waited).join()).is_err() {
            failed.push(name);
        }
    }
    for Scenario { processes, history, .. } in &mut scenarios {
        processes.stop(history);
    }
    let overloaded = watch.stop();
    for scenario in &mut scenarios {
        let name = scenario.kind.name;
        if thread::scope(|scope| scope.spawn(|| scenario.finish(kafka, seed)).join()).is_err() {
            failed.push(name);
        }
    }
    failed.dedup();
    assert!(failed.is_empty(), "violations of the groups {failed:?}");
    overloaded
}
