//! The simulation of `campanile-test`, over a memory store with faults.

use campanile_test::simulation::{Memory, simulate, simulate_many};

#[test]
fn invariants_hold_under_random_faults() {
    simulate_many::<Memory>(600);
}

#[test]
fn same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let hash = simulate::<Memory>(seed).hash;
        (0..4).for_each(|_| assert_eq!(simulate::<Memory>(seed).hash, hash, "seed {seed}"));
    }
}
