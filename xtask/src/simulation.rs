//! Runs the simulations of the stores with many seeds.

use crate::Result;
use crate::progress::{Progress, cargo_with_deadline};
use crate::prove::Size;
use crate::supervise::supervise;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

/// The simulated stores, each with cargo's arguments for the tests that simulate it.
const STORES: &[(&str, &[&str])] = &[
    ("memory", &["--package", "campanile-idempotency", "--test", "layer"]),
    ("Redis", &["--package", "campanile-redis", "--lib"]),
    ("Postgres", &["--package", "campanile-postgres", "--lib"]),
];

/// The number of seeds of each store: in a small run, and in a full one.
const SMALL: u64 = 1_000;
const FULL: u64 = 100_000;

/// The time limit of building and simulating one store: several times its duration at full size.
const TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// Simulates each store, and prints what happened as Markdown. Fails at the first violation, after its
/// seed.
pub(crate) fn simulate(progress: &Progress, args: &[OsString]) -> Result {
    let size = Size::from_args(args)?;
    let seeds = if size == Size::Full { FULL } else { SMALL };
    let mut simulated = Simulated::default();
    for (store, target) in STORES {
        let lines = run(progress, target, seeds)?;
        simulated.add(store, &lines)?;
    }
    println!("{}", simulated.to_markdown());
    Ok(())
}

/// Runs the simulation of one store. Returns the lines of its output.
fn run(progress: &Progress, target: &[&str], seeds: u64) -> Result<Vec<String>> {
    let mut command = cargo_with_deadline(TIMEOUT)?;
    command.args(["test", "--release"]).args(target);
    command.args(["--", "simulation::", "--show-output"]);
    command.env("CAMPANILE_SIMULATION_CASES", seeds.to_string());
    progress.step(&format!("simulating {seeds} seeds: {}", target.join(" ")));
    let finished = supervise(&mut command, TIMEOUT, &mut io::sink())?;
    if finished.status.is_some_and(|status| status.success()) {
        return Ok(finished.lines);
    }
    finished.lines.iter().for_each(|line| eprintln!("{line}"));
    Err(format!("the simulation failed: {}", target.join(" ")).into())
}

/// What the simulations have printed.
#[derive(Debug, Default)]
struct Simulated {
    stores: Vec<String>,
    bugs: Vec<String>,
}

impl Simulated {
    /// Adds what the tests of a store printed.
    fn add(&mut self, store: &str, lines: &[String]) -> Result {
        let after =
            |prefix: &'static str| lines.iter().filter_map(move |it| it.strip_prefix(prefix));
        let row = |text: &str| format!("\n| {store} | {} |", text.replace("; ", " | "));
        let before = self.stores.len();
        self.stores.extend(after("simulated: ").map(row));
        self.bugs.extend(after("planted bug: ").map(row));
        match self.stores.len() == before + 1 {
            true => Ok(()),
            false => Err(format!("the simulation of the store {store} printed no total").into()),
        }
    }

    fn to_markdown(&self) -> String {
        let Self { stores, bugs } = self;
        format!(
            "0 violations.\n\n\
             | store | first seed | seeds | records | runs | runs again, by cause |\n\
             |---|---|---|---|---|---|{}\n\n\
             All {} planted bugs were found:\n\n\
             | store | bug | first seed that finds it, from 0 |\n\
             |---|---|---|{}",
            stores.concat(),
            bugs.len(),
            bugs.concat(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_becomes_tables() {
        let lines = [
            "running 2 tests",
            "seeds 7..9",
            "simulated: 7; 2; 30; 40; `failed` 9, `dropped` 1",
            "planted bug: StaleReply; 12",
        ];
        let mut simulated = Simulated::default();
        simulated.add("Redis", &lines.map(str::to_owned)).unwrap();
        let text = simulated.to_markdown();
        let rows = [
            "| Redis | 7 | 2 | 30 | 40 | `failed` 9, `dropped` 1 |",
            "| Redis | StaleReply | 12 |",
        ];
        assert!(rows.iter().all(|row| text.lines().any(|line| line == *row)), "{text}");
        assert!(simulated.add("memory", &[]).is_err());
    }
}
