//! A deterministic simulation: the driver, the idempotency layer, the lock keeper and a store run
//! in one thread in virtual time, on a simulated consumer group.
//!
//! A seed determines everything that happens: how long handlers take, what fails, when partitions
//! are revoked or lost, when positions are reset or sought, when commits fail, and when the store is
//! unavailable. The history of each seed is checked while it is recorded, so that a violation is
//! reported where it happens.

mod cluster;
mod history;
mod planted;
mod process;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) use self::planted::{Bug, is_planted};
use self::process::simulate;

/// The default number of seeds, which take a few seconds without optimization.
const SEEDS: u64 = 2_000;

/// The number of seeds within which each planted bug must be found.
const BUG_SEEDS: u64 = 1_000;

/// `CAMPANILE_DRIVER_SEEDS` overrides the number of seeds for longer runs.
fn seeds() -> u64 {
    let seeds = std::env::var("CAMPANILE_DRIVER_SEEDS").ok();
    seeds.map_or(SEEDS, |seeds| seeds.parse().expect("CAMPANILE_DRIVER_SEEDS is a number"))
}

#[test]
fn every_seed_upholds_the_guarantees() {
    let (mut records, mut attempts, mut revokes, mut resets, mut seeks_made) = (0, 0, 0, 0, 0);
    for seed in 0..seeds() {
        let run = catch_unwind(|| simulate(seed, None));
        let Ok(history) = run else { panic!("seed {seed} violates a guarantee") };
        records += history.finished();
        attempts += history.attempts;
        revokes += history.revokes;
        resets += history.resets;
        seeks_made += history.seeks;
    }
    println!(
        "{} seeds: {records} records, {attempts} attempts, {revokes} revokes, {resets} resets, {seeks_made} \
         seeks",
        seeds()
    );
    // Events that do not occur are not checked.
    assert!(attempts > records && revokes > seeds() && resets > seeds() / 10);
    assert!(seeks_made > seeds() / 2, "{seeks_made} seeks");
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
        println!("{bug:?} is found by seed {found:?}");
        assert!(found.is_some(), "{bug:?} is not found in {BUG_SEEDS} seeds");
    }
}
