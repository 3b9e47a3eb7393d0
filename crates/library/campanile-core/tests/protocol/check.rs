//! Runs a property and prints how to run the same cases again.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::{BuildHasher, Hasher};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseResult, TestRunner};

/// Checks `property` on `cases` values of `strategy`.
///
/// `PROPTEST_CASES` overrides the number of cases, and `PROPTEST_RNG_SEED` repeats the values of an
/// earlier run. Both are printed at the start and again with a failure.
pub(crate) fn check<S: Strategy>(
    cases: u32,
    strategy: &S,
    property: impl Fn(S::Value) -> TestCaseResult,
) {
    let default_config = Config::default(); // reads the environment
    let seed = match default_config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().build_hasher().finish(),
    };
    let cases = if env::var_os("PROPTEST_CASES").is_some() { default_config.cases } else { cases };
    let rerun = format!("PROPTEST_CASES={cases} PROPTEST_RNG_SEED={seed}");
    println!("{rerun}");

    let rng_seed = RngSeed::Fixed(seed);
    let config = Config { cases, rng_seed, failure_persistence: None, ..default_config };
    if let Err(failure) = TestRunner::new(config).run(strategy, property) {
        panic!("{failure}\nto repeat this run, set {rerun}");
    }
}
