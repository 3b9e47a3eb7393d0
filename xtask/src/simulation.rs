//! Runs the simulations of the stores and of the consumer driver with many seeds.

use crate::Result;
use crate::command::Size;
use crate::progress::Progress;
use crate::soak::Tested;
use std::io;

/// A simulation.
struct Simulation {
    name: &'static str,
    /// Cargo's arguments for its test binary.
    target: &'static [&'static str],
    /// What the names of its tests contain.
    tests: &'static str,
    has_planted_bugs: bool,
}

/// The simulations of the layer, over each store.
const STORES: &[Simulation] = &[
    Simulation {
        name: "memory",
        target: &["--package", "campanile-idempotency", "--test", "layer"],
        tests: "simulation::",
        has_planted_bugs: false,
    },
    Simulation {
        name: "Redis",
        target: &["--package", "campanile-redis", "--lib"],
        tests: "simulation::",
        has_planted_bugs: true,
    },
    Simulation {
        name: "Postgres",
        target: &["--package", "campanile-postgres", "--lib"],
        tests: "simulation::",
        has_planted_bugs: true,
    },
];

/// The simulation of the consumer driver.
const DRIVER: Simulation = Simulation {
    name: "driver",
    target: &["--package", "campanile-driver", "--test", "simulation"],
    tests: "every_",
    has_planted_bugs: true,
};

/// The number of seeds of each simulation: in a small run, and in a full one.
const SMALL: u64 = 1_000;
const FULL: u64 = 100_000;

/// Runs each simulation, and returns what happened as Markdown. Fails at the first violation, after its
/// seed.
pub(crate) fn simulate(progress: &Progress, size: Size) -> Result<String> {
    let seeds = if size == Size::Full { FULL } else { SMALL };
    let mut simulated = Simulated::default();
    for store in STORES {
        let lines = run(progress, store, seeds)?;
        let row = simulated.add(store, &lines)?;
        simulated.stores.push(row);
    }
    let lines = run(progress, &DRIVER, seeds)?;
    simulated.driver = simulated.add(&DRIVER, &lines)?;
    Ok(simulated.to_markdown())
}

/// Runs one simulation. Returns the lines of its output.
fn run(progress: &Progress, simulation: &Simulation, seeds: u64) -> Result<Vec<String>> {
    progress.step(&format!("simulating {seeds} seeds: {}", simulation.name));
    let tested = Tested::run(progress, simulation.target, &mut io::sink(), |command| {
        command.arg(simulation.tests).env("CAMPANILE_SIMULATION_CASES", seeds.to_string());
    })?;
    if !tested.has_failed() {
        return Ok(tested.lines);
    }
    tested.lines.iter().for_each(|line| eprintln!("{line}"));
    Err(format!("the simulation failed: {}", simulation.name).into())
}

/// What the simulations have printed.
#[derive(Debug, Default)]
struct Simulated {
    stores: Vec<String>,
    driver: String,
    bugs: Vec<String>,
}

impl Simulated {
    /// Adds the bugs that a simulation found. Returns the row of its seeds.
    fn add(&mut self, simulation: &Simulation, lines: &[String]) -> Result<String> {
        let name = simulation.name;
        let rows = |prefix: &'static str| {
            let texts = lines.iter().filter_map(move |line| line.strip_prefix(prefix));
            texts.map(|text| format!("\n| {name} | {} |", text.replace("; ", " | ")))
        };
        let bugs: Vec<_> = rows("planted bug: ").collect();
        if bugs.is_empty() == simulation.has_planted_bugs {
            return Err(format!("the simulation `{name}` found {} planted bugs", bugs.len()).into());
        }
        self.bugs.extend(bugs);
        let mut totals = rows("simulated: ");
        match (totals.next(), totals.next()) {
            (Some(row), None) => Ok(row),
            _ => Err(format!("the simulation `{name}` did not print one total").into()),
        }
    }

    fn to_markdown(&self) -> String {
        let Self { stores, driver, bugs } = self;
        format!(
            "0 violations.\n\n\
             | store | first seed | seeds | of these judged | records | runs | runs again, by cause |\n\
             |---|---|---|---|---|---|---|{}\n\n\
             | | first seed | seeds | records | runs | partitions revoked | positions reset | seeks |\n\
             |---|---|---|---|---|---|---|---|{driver}\n\n\
             All {} planted bugs were found, each by a seed that is sound without it:\n\n\
             | simulation | bug | first seed that finds it, from 0 |\n\
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
            "2 seeds from 7",
            "simulated: 7; 2; 1; 30; 40; `failed` 9, `dropped` 1",
            "planted bug: StaleReply; 12",
        ];
        let lines = lines.map(str::to_owned);
        let [memory, redis, _] = STORES else { panic!("three stores") };
        let mut simulated = Simulated::default();
        let row = simulated.add(redis, &lines).unwrap();
        simulated.stores.push(row);
        let text = simulated.to_markdown();
        let rows = [
            "| Redis | 7 | 2 | 1 | 30 | 40 | `failed` 9, `dropped` 1 |",
            "| Redis | StaleReply | 12 |",
        ];
        assert!(rows.iter().all(|row| text.lines().any(|line| line == *row)), "{text}");
        // Without a bug, without a total, and with a bug where none is planted.
        for (simulation, lines) in [(redis, &lines[..3]), (redis, &lines[3..]), (memory, &lines)] {
            assert!(simulated.add(simulation, lines).is_err());
        }
    }
}
