//! The simulation of `campanile-test`, over a memory store with faults.

use campanile_test::history::Cause;
use campanile_test::simulation::{Memory, simulate, simulate_many};

#[test]
fn invariants_hold_under_random_faults() {
    let causes = [
        Cause::Failed,
        Cause::KilledBeforeEffect,
        Cause::Dropped,
        Cause::Suspended,
        Cause::NetworkCut,
    ];
    simulate_many::<Memory>(600, &causes);
}

#[test]
fn same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let hash = || simulate::<Memory>(seed).hash;
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}
