//! Histories of simulations are accepted, and rejected when an event of them is changed. Both judges
//! agree on them, and on random histories.

use std::collections::HashMap;

use campanile_history::{Cause, Transactions};

use crate::agreement::{compare_random, judge_recorded};
use crate::mutations::MUTATIONS;
use crate::random::random_history;
use crate::simulator::{Plan, TRANSACTIONS, simulate};

#[test]
fn simulated_histories_are_sound_and_name_all_causes() {
    // 1 000 000 events with `CAMPANILE_HISTORY_RECORDS=200000`.
    let records = std::env::var("CAMPANILE_HISTORY_RECORDS");
    let records = records.map_or(6_000, |text| text.parse().unwrap());
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for transactions in TRANSACTIONS {
        let (partitions, steps_per_fault, has_data_loss) = (64, 200, true);
        let plan = Plan { seed, records, partitions, steps_per_fault, has_data_loss, transactions };
        let verdict = judge_recorded(&simulate(&plan));
        assert!(verdict.is_sound(), "{verdict}");
        assert_eq!(verdict.records, records);
        let causes: Vec<_> = verdict.causes().into_keys().collect();
        let of_kind = match transactions {
            Some(Transactions::Store) => &[Cause::RolledBack][..],
            _ => &[Cause::KilledAfterEffect, Cause::DroppedAfterSuccess],
        };
        let of_all = [
            Cause::Failed,
            Cause::KilledBeforeEffect,
            Cause::Dropped,
            Cause::Suspended,
            Cause::StoreLostWrites,
            Cause::StoreEvicted,
        ];
        let mut expected = [of_kind, &of_all].concat();
        expected.sort();
        assert_eq!(causes, expected, "{verdict}");
        println!("{} events", verdict.events);
    }
}

/// Small histories of many seeds find rare orders of events.
#[test]
fn small_simulated_histories_are_sound() {
    let first = fastrand::u64(..u64::MAX / 2);
    for seed in first..first + 60 {
        let (records, partitions, steps_per_fault) = (100, 6, 10);
        let (has_data_loss, transactions) = (true, TRANSACTIONS[(seed % 3) as usize]);
        let plan = Plan { seed, records, partitions, steps_per_fault, has_data_loss, transactions };
        let verdict = judge_recorded(&simulate(&plan));
        assert!(verdict.is_sound(), "seed {seed}: {verdict}");
    }
}

#[test]
fn planted_mutations_violate_their_rule() {
    let mut planted: HashMap<&str, usize> = HashMap::new();
    let first = fastrand::u64(..u64::MAX / 2);
    for seed in first..first + 30 {
        let (records, partitions, steps_per_fault) = (200, 6, 30);
        let (has_data_loss, transactions) = (false, TRANSACTIONS[(seed % 3) as usize]);
        let plan = Plan { seed, records, partitions, steps_per_fault, has_data_loss, transactions };
        let recorded = simulate(&plan);
        for (name, mutation) in MUTATIONS {
            let mut mutated = recorded.clone();
            let Some(rule) = mutation(&mut mutated) else { continue };
            let verdict = judge_recorded(&mutated);
            let is_found = verdict.violations.iter().any(|violation| violation.rule == rule);
            assert!(is_found, "seed {seed}: {name}: expected {rule}, got {verdict}");
            *planted.entry(name).or_default() += 1;
        }
    }
    for (name, _) in MUTATIONS {
        assert!(planted.get(name).is_some_and(|count| *count > 2), "{name}: {planted:?}");
    }
}

#[test]
fn judges_agree_on_random_histories() {
    let first = fastrand::u64(..u64::MAX / 2);
    println!("seeds from {first}");
    for seed in first..first + 3_000 {
        compare_random(seed, random_history(seed)).unwrap_or_else(|text| panic!("{text}"));
    }
}
