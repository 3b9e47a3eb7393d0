//! Benchmarks: `cargo xtask bench [core|redis|postgres|driver] [--json FILE]`.
//!
//! Every claim is a ratio of two things measured in one run, interleaved, several times; printed are
//! the minimum, the median and the maximum. The machine is named, for the figures alone mean nothing.

mod core;
mod driver;
mod guarded;
mod postgres;
mod redis;
mod report;
mod tutorial;

use std::process::ExitCode;

use campanile::BoxError;
use lexopt::{Arg, ValueExt};

use crate::report::Report;

const USAGE: &str = "usage: campanile-bench [core|redis|postgres|driver] [--json FILE]";

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
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = Some(args.value()?),
            Arg::Value(area) => areas.push(area.string()?),
            arg => return Err(format!("{}\n{USAGE}", arg.unexpected()).into()),
        }
    }
    if areas.is_empty() {
        areas = ["core", "redis", "postgres", "driver"].map(String::from).into();
    }
    let mut report = Report::new();
    for area in areas {
        match &*area {
            "core" => core::run(&mut report)?,
            "redis" => redis::run(&mut report)?,
            "postgres" => postgres::run(&mut report)?,
            "driver" => driver::run(&mut report)?,
            other => return Err(format!("no area {other:?}\n{USAGE}").into()),
        }
    }
    println!("{report}");
    if let Some(file) = json {
        std::fs::write(&file, report.json()?)?;
    }
    Ok(())
}
