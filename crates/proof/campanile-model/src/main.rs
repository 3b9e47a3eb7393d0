//! Explores all configurations with `step`, and each mutant: `cargo xtask prove model`.
//!
//! Prints what it saw as Markdown, and its progress and the stories of the mutants to standard error.

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use campanile_model::{Config, Found, MUTANTS, Mutant, Report, Size, explore, rule_count, tell};
use lexopt::{Arg, ValueExt};

const USAGE: &str = "\
usage: campanile-model [--size small|full]

small (default) takes seconds, full some minutes.";

/// How many states of each configuration a small run visits.
const SMALL_LIMIT: usize = 100_000;
/// How many states of the same configurations a full run visits: all.
const FULL_LIMIT: usize = 50_000_000;
/// How many states of each larger configuration a full run visits.
const LARGE_LIMIT: usize = 2_000_000;

fn main() -> ExitCode {
    let size = match parse_size() {
        Ok(size) => size,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let with_limit = |size, limit| Config::all(size).into_iter().map(move |config| (config, limit));
    let runs: Vec<_> = match size {
        Size::Small => with_limit(Size::Small, SMALL_LIMIT).collect(),
        Size::Full => {
            with_limit(Size::Small, FULL_LIMIT).chain(with_limit(Size::Full, LARGE_LIMIT)).collect()
        }
    };
    let explored = in_parallel(runs, threads, |(config, limit)| explore_config(config, limit));
    let mutants = in_parallel(MUTANTS.to_vec(), threads, find_mutant);
    print_explored(&explored, threads);
    print_mutants(&mutants);
    let has_failed = explored.iter().any(|(_, report, _)| report.violation.is_some())
        || mutants.iter().any(|(_, found)| found.is_none());
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn parse_size() -> Result<Size, lexopt::Error> {
    let mut size = Size::Small;
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("size") => {
                size = parser.value()?.parse_with(|value| match value {
                    "small" => Ok(Size::Small),
                    "full" => Ok(Size::Full),
                    _ => Err("expected small or full"),
                })?;
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(size)
}

/// Processes the items on some threads. The results are in the order of the items.
fn in_parallel<T: Send, R: Send>(
    items: Vec<T>,
    threads: usize,
    process: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let items = Mutex::new(items.into_iter().enumerate());
    let results = Mutex::new(Vec::new());
    let next = || items.lock().expect("no thread panics with it").next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, item)) = next() {
                    let result = process(item);
                    results.lock().expect("no thread panics with it").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("all threads have ended");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[expect(clippy::disallowed_methods, reason = "a displayed time; no lock depends on it")]
fn now() -> Instant {
    Instant::now()
}

fn explore_config(config: Config, limit: usize) -> (Config, Report, Duration) {
    let start = now();
    let report = explore(&config, campanile_core::step, true, limit);
    let elapsed = start.elapsed();
    eprintln!("{}: {} states in {:.1} s", config.name, report.states, elapsed.as_secs_f64());
    if let Some(violation) = &report.violation {
        eprintln!("{}", tell(&config, campanile_core::step, violation));
    }
    (config, report, elapsed)
}

fn find_mutant(mutant: Mutant) -> (Mutant, Option<Found>) {
    let found = mutant.find();
    let story = found.as_ref().map_or("not found", |found| &found.story);
    eprintln!("\nMutant: {}\n{story}", mutant.name);
    (mutant, found)
}

fn print_explored(explored: &[(Config, Report, Duration)], threads: usize) {
    let states: usize = explored.iter().map(|(_, report, _)| report.states).sum();
    let steps: usize = explored.iter().map(|(_, report, _)| report.steps).sum();
    let seconds: f64 = explored.iter().map(|(_, _, elapsed)| elapsed.as_secs_f64()).sum();
    let violations = explored.iter().filter(|(_, report, _)| report.violation.is_some()).count();
    println!(
        "{} rules were checked in {states} states, distinct within their configuration: {violations} \
         violations. `step` ran on {steps} combinations of entry, command and time, distinct in the same way. {threads} threads \
         took {seconds:.0} s together. A configuration is complete if all its histories were explored, and otherwise up to \
         the given length.\n",
        rule_count(),
    );
    println!(
        "| configuration | at most | distinct states | actions | length of histories | seconds |"
    );
    println!("|---|---|---|---|---|---|");
    for (config, report, elapsed) in explored {
        let Report { states, actions, depth, is_complete, .. } = report;
        let extent = if *is_complete { "complete".to_owned() } else { depth.to_string() };
        let (name, bounds, seconds) = (config.name, config.bounds(), elapsed.as_secs_f64());
        println!("| {name} | {bounds} | {states} | {actions} | {extent} | {seconds:.0} |");
    }
}

fn print_mutants(mutants: &[(Mutant, Option<Found>)]) {
    let found = mutants.iter().filter(|(_, found)| found.is_some()).count();
    println!("\n{found} of {} mutants of `step` were found:\n", mutants.len());
    println!("| mutant | rule that it breaks | states visited until it was found |");
    println!("|---|---|---|");
    for (mutant, found) in mutants {
        match found {
            Some(Found { rule, states, .. }) => {
                println!("| {} | {}: {} | {states} |", mutant.name, rule.section, rule.name);
            }
            None => println!("| {} | not found | |", mutant.name),
        }
    }
}
