//! Judges many histories with both judges, and prints what they found as Markdown: `cargo xtask prove
//! history`. Fails if the judges disagree, or do not find what was changed.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../tests/judge/agreement.rs"]
mod agreement;
#[path = "../tests/judge/mutations.rs"]
mod mutations;
#[path = "../tests/judge/random.rs"]
mod random;
#[path = "../tests/judge/second/mod.rs"]
mod second;
#[path = "../tests/judge/simulator/mod.rs"]
mod simulator;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use campanile_history::{Cause, Rule, Verdict};

use crate::agreement::{compare, compare_random};
use crate::mutations::MUTATIONS;
use crate::random::random_history;
use crate::simulator::{Plan, TRANSACTIONS, simulate, with_texts};

/// How many records are simulated, how many seeds have mutations, and how many random histories
/// there are: in a small run, and in a full one of some minutes.
const SMALL: (usize, u64, u64) = (6_000, 10, 3_000);
const FULL: (usize, u64, u64) = (200_000, 200, 300_000);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (records, mutated, random) = match args[..] {
        [] | ["--size", "small"] => SMALL,
        ["--size", "full"] => FULL,
        _ => {
            eprintln!("usage: prove [--size small|full]");
            return ExitCode::from(2);
        }
    };
    let first = fastrand::u64(..u64::MAX / 2);
    let seeds = |count: u64| format!("seeds {first} to {}", first + count - 1);
    let of_random = compare_all_random(first..first + random);
    let (of_mutated, found) = compare_mutated(first, mutated);
    let rows = [
        ("forged".to_owned(), compare_forged()),
        (format!("simulated, seed {first}"), compare_simulated(first, records)),
        (format!("simulated and changed, {}", seeds(mutated)), of_mutated),
        (format!("random, {}", seeds(random)), of_random),
    ];
    print_rows(&rows);
    println!(
        "\nThere are {} kinds of changes. The violation that a change causes was found in {found} of {} \
         changed histories.",
        MUTATIONS.len(),
        rows[2].1.histories
    );
    print_rules_and_causes(&rows[3].1);
    let disagreements: usize = rows.iter().map(|(_, compared)| compared.disagreements).sum();
    let has_missed = found < rows[2].1.histories;
    if disagreements > 0 || has_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What the judges found in some histories.
#[derive(Default)]
struct Compared {
    histories: usize,
    events: usize,
    unreadable: usize,
    violations: usize,
    reruns: usize,
    disagreements: usize,
    /// The number of histories with each.
    rules: BTreeMap<Rule, usize>,
    causes: BTreeMap<Cause, usize>,
}

impl Compared {
    fn add(&mut self, result: Result<Option<Verdict>, String>) {
        self.histories += 1;
        match result {
            Ok(None) => self.unreadable += 1,
            Ok(Some(verdict)) => {
                self.events += verdict.events;
                self.violations += verdict.violations.len();
                self.reruns += verdict.reruns.len();
                for rule in Rule::ALL {
                    let is_violated = verdict.violations.iter().any(|it| it.rule == *rule);
                    *self.rules.entry(*rule).or_default() += usize::from(is_violated);
                }
                for cause in Cause::ALL {
                    let has_cause = verdict.reruns.iter().any(|rerun| rerun.cause == *cause);
                    *self.causes.entry(*cause).or_default() += usize::from(has_cause);
                }
            }
            Err(text) => {
                self.disagreements += 1;
                eprintln!("{text}");
            }
        }
    }
}

fn compare_forged() -> Compared {
    let mut compared = Compared::default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories");
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        compared.add(compare(&[("forged.jsonl", &text)]));
    }
    compared
}

fn compare_simulated(seed: u64, records: usize) -> Compared {
    let (partitions, steps_per_fault, has_data_loss) = (64, 200, true);
    let mut compared = Compared::default();
    for transactions in TRANSACTIONS {
        let plan = Plan { seed, records, partitions, steps_per_fault, has_data_loss, transactions };
        with_texts(&simulate(&plan), |files| compared.add(compare(files)));
    }
    compared
}

/// Compares the judges on histories of which one event was changed. Also returns how many of them
/// violate the rule that the change breaks.
fn compare_mutated(first: u64, count: u64) -> (Compared, usize) {
    let (mut compared, mut found) = (Compared::default(), 0);
    for seed in first..first + count {
        let (records, partitions, steps_per_fault) = (200, 6, 30);
        let (has_data_loss, transactions) = (false, TRANSACTIONS[(seed % 3) as usize]);
        let plan = Plan { seed, records, partitions, steps_per_fault, has_data_loss, transactions };
        let recorded = simulate(&plan);
        // A violation that is found is that of the change.
        with_texts(&recorded, |files| match compare(files) {
            Ok(Some(verdict)) => assert!(verdict.is_sound(), "seed {seed}: {verdict}"),
            other => panic!("seed {seed}: {other:?}"),
        });
        for (_, mutation) in MUTATIONS {
            let mut mutated = recorded.clone();
            if let Some(rule) = mutation(&mut mutated) {
                let result = with_texts(&mutated, compare);
                let has_rule =
                    |verdict: &Verdict| verdict.violations.iter().any(|it| it.rule == rule);
                found += usize::from(matches!(&result, Ok(Some(verdict)) if has_rule(verdict)));
                compared.add(result);
            }
        }
    }
    (compared, found)
}

fn compare_all_random(seeds: std::ops::Range<u64>) -> Compared {
    let mut compared = Compared::default();
    for seed in seeds {
        compared.add(compare_random(seed, random_history(seed)));
    }
    compared
}

fn print_rows(rows: &[(String, Compared)]) {
    println!("| histories | number | unreadable | events | violations | causes | disagreements |");
    println!("|---|---|---|---|---|---|---|");
    for (name, compared) in rows {
        let Compared { histories, unreadable, events, violations, reruns, disagreements, .. } =
            compared;
        println!(
            "| {name} | {histories} | {unreadable} | {events} | {violations} | {reruns} | \
             {disagreements} |"
        );
    }
}

fn print_rules_and_causes(random: &Compared) {
    let counts = |counts: Vec<(&str, usize)>| {
        let counts: Vec<_> =
            counts.into_iter().map(|(name, count)| format!("`{name}` {count}")).collect();
        counts.join(", ")
    };
    let rules = random.rules.iter().map(|(rule, count)| (rule.name(), *count));
    let causes = random.causes.iter().map(|(cause, count)| (cause.name(), *count));
    println!("\nRandom histories that violate each rule: {}.", counts(rules.collect()));
    println!("\nRandom histories with each cause: {}.", counts(causes.collect()));
}
