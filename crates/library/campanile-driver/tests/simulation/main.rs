//! A deterministic simulation: the driver, the idempotency layer, the lock keeper and a store run
//! in one thread in virtual time, on a simulated consumer group.
//!
//! A seed determines everything that happens: how long handlers take, what fails, when partitions
//! are revoked or lost, when positions are reset or sought, when commits fail, and when the store is
//! unavailable. The history of each seed is checked while it is recorded, so that a violation is
//! reported where it happens.

mod cluster;
mod conformance;
mod dependency;
mod history;
mod outage;
mod process;

use std::panic::{AssertUnwindSafe, catch_unwind};

use campanile_test::simulation::simulate_seeds;

use self::cluster::Bug;
use self::process::simulate;

/// The default number of seeds, which take a few seconds without optimization.
const SEEDS: u64 = 2_000;

/// The number of seeds within which each planted bug must be found.
const BUG_SEEDS: u64 = 1_000;

#[test]
fn every_seed_upholds_the_guarantees() {
    let (mut records, mut attempts, mut revokes, mut resets, mut seeks_made) = (0, 0, 0, 0, 0);
    let (mut overtakes, mut outages) = (0, 0);
    let simulated = simulate_seeds(
        SEEDS,
        |seed| simulate(seed, None),
        |history| {
            records += history.finished();
            attempts += history.attempts;
            revokes += history.revokes;
            overtakes += history.overtakes;
            outages += history.outages;
            resets += history.resets;
            seeks_made += history.seeks;
        },
    );
    let Some(seeds) = simulated else { return };
    let (first, count) = (seeds.start, seeds.end - seeds.start);
    println!(
        "simulated: {first}; {count}; {records}; {attempts}; {revokes}; {resets}; {seeks_made}"
    );
    // Events that do not occur are not checked.
    assert!(attempts > records && revokes > count && resets > count / 10);
    assert!(seeks_made > count / 2, "{seeks_made} seeks");
    assert!(overtakes > count / 20, "{overtakes} overtaken revokes");
    assert!(outages > count / 3, "{outages} outages of the dependency");
}

#[test]
fn same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let hash = simulate(seed, None).hash();
        (0..4).for_each(|_| assert_eq!(simulate(seed, None).hash(), hash, "seed {seed}"));
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        let is_found =
            |seed: &u64| catch_unwind(AssertUnwindSafe(|| simulate(*seed, Some(bug)))).is_err();
        let found = (0..BUG_SEEDS).find(is_found);
        let Some(seed) = found else { panic!("{bug:?} is not found in {BUG_SEEDS} seeds") };
        // It is sound without the bug.
        simulate(seed, None);
        println!("planted bug: {bug:?}; {seed}");
    }
}
