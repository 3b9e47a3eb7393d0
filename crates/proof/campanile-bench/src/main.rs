//! Benchmarks: `cargo xtask bench [core|redis|postgres|driver|admin] [--json FILE]`. `--only` selects
//! single rows of the driver, or of `redis`. `cargo xtask bench loops` prints a table instead.
//!
//! Every claim is a ratio of two things that are measured in the same run, interleaved, several
//! times. The output shows the minimum, the median and the maximum. It names the machine, because
//! absolute figures mean nothing without it.

mod admin;
mod core;
mod driver;
mod handlers;
mod postgres;
mod redis;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use campanile::BoxError;
use lexopt::{Arg, ValueExt};

use crate::report::Report;

const USAGE: &str = "\
usage: campanile-bench [core|redis|postgres|driver|admin] [--json FILE]
                       [--only ROW[,ROW]] [--rounds N] [--seconds N] [--awake] [--full]
       campanile-bench loops [--rounds N] [--awake]

Of the rows of driver and redis, --only runs these: by-partition-6, or by-partition for all that begin
so. Each contestant of the driver runs --rounds times (3), for --seconds at most (3). With --awake, a loop
of the lowest priority keeps each processor from sleeping, as on a loaded server. --full fills the
memory's row with 1 GiB in 500 partitions, and Redis with 10 million entries for admin.

loops compares loops written by hand with Campanile, kills each of them, and prints a table in Markdown.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), BoxError> {
    let mut areas: Vec<String> = Vec::new();
    let mut json = None;
    let mut options = driver::Options::default();
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = Some(args.value()?),
            Arg::Long("only") => {
                options.only.extend(args.value()?.string()?.split(',').map(String::from));
            }
            Arg::Long("rounds") => options.rounds = args.value()?.parse()?,
            Arg::Long("seconds") => options.limit = Duration::from_secs_f64(args.value()?.parse()?),
            Arg::Long("awake") => options.awake = true,
            Arg::Long("full") => options.full = true,
            Arg::Value(area) if area == driver::CONTESTANT => {
                return driver::run_contestant(&args.value()?.string()?);
            }
            Arg::Value(area) => areas.push(area.string()?),
            arg => return Err(format!("{}\n{USAGE}", arg.unexpected()).into()),
        }
    }
    if areas.is_empty() && !options.only.is_empty() {
        areas.push("driver".to_owned());
    }
    if areas.is_empty() {
        areas = ["core", "redis", "postgres", "driver", "admin"].map(String::from).into();
    }
    if areas == ["loops"] {
        return driver::run_loops(options);
    }
    let mut report = Report::new();
    for area in areas {
        match &*area {
            "core" => core::run(&mut report)?,
            "redis" => redis::run(&mut report, &options)?,
            "postgres" => postgres::run(&mut report)?,
            "driver" => driver::run(&mut report, options.clone())?,
            "admin" => admin::run(&mut report, options.full)?,
            other => return Err(format!("no area {other:?}\n{USAGE}").into()),
        }
    }
    println!("{report}");
    if let Some(file) = json {
        std::fs::write(&file, report.json()?)?;
    }
    Ok(())
}
