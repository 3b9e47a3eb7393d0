//! The explorer with the `step` that ships, on the first states of every configuration, and with its
//! mutants. `cargo xtask prove model` explores more.

use std::collections::HashMap;

use campanile_core::step;
use campanile_model::{Config, MUTANTS, Size, explore, tell};

/// Enough for every rule to apply.
const STATES: usize = 60_000;

#[test]
fn step_keeps_all_rules_of_the_protocol() {
    let mut applied: HashMap<&str, u64> = HashMap::new();
    for config in Config::all(Size::Small) {
        let report = explore(&config, step, true, STATES);
        if let Some(violation) = &report.violation {
            panic!("{}", tell(&config, step, violation));
        }
        for (rule, count) in report.applied {
            *applied.entry(rule.name).or_default() += count;
        }
    }
    let unused: Vec<_> = applied.iter().filter(|(_, count)| **count == 0).collect();
    assert!(unused.is_empty(), "these rules never applied: {unused:?}");
}

#[test]
fn every_mutant_of_step_breaks_a_rule() {
    let missed = MUTANTS.iter().filter(|mutant| mutant.find().is_none());
    let missed: Vec<_> = missed.map(|mutant| mutant.name).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn violation_is_told_as_shortest_history() {
    assert_eq!(
        story("a live lock is granted to others in its second half"),
        "\
10:00  A gets the record with payload 1, and sends an acquire.
10:00  B gets the record with payload 1, and sends an acquire.
10:00  B's acquire arrives: granted with token 1000, attempt 1, until 11:00.
10:00  Half an hour passes.
10:30  A's acquire arrives: granted with token 1016, attempt 2, until 11:30.
Broken: no two clients hold the lock at once, each by its own clock (Decision 15)."
    );
}

#[test]
fn story_of_a_single_step_shows_the_entry() {
    let story = story("a cancel keeps the attempt");
    assert!(
        story.contains("\n       The entry was PROCESSING until 11:00 with token 1000"),
        "{story}"
    );
    assert!(story.contains("\n       It is now RETRYING from 10:00 with token 1000"), "{story}");
}

fn story(name: &str) -> String {
    let mutant = MUTANTS.iter().find(|mutant| mutant.name == name).expect("a mutant");
    mutant.find().expect("it breaks a rule").story
}
