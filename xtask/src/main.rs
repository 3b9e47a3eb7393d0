//! The project's commands: `cargo xtask`.

mod binaries;
mod ci;
mod commands;
mod dependencies;
mod document;
mod everything;
mod evidence;
mod features;
mod fetch;
mod fuzz;
mod guarantees;
mod install;
mod libtest;
mod license;
mod metadata;
mod mutation;
mod package;
mod parallel;
mod progress;
mod prove;
mod simulation;
mod soak;
mod supervise;
mod usage;

use progress::Progress;
use std::env;
use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Duration;
use usage::USAGE;

/// The result of a command. The error is a message for the user.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    if command == progress::SUPERVISE {
        return supervise(&rest);
    }
    if is_help(&command) || rest.iter().any(is_help) {
        println!("{}", usage::of(&command.to_string_lossy()));
        return ExitCode::SUCCESS;
    }
    let progress = Progress::start();
    let result = match (command.to_str(), rest.is_empty()) {
        (Some("test"), true) => ci::test(&progress).map(success_message),
        (Some("install"), true) => install::install(&progress).map(success_message),
        (Some("servers"), _) => commands::servers(&progress, &rest).map(success_message),
        (Some("bench"), _) if rest == ["loops", "--write"] => {
            commands::write_loops(&progress).map(success_message)
        }
        (Some("bench"), _) => commands::bench(&progress, &rest).map(success_message),
        (Some("everything"), _) => everything::everything(&progress, &rest).map(success_message),
        (Some("fuzz"), _) => fuzz::fuzz(&progress, &rest).map(success_message),
        (Some("simulate"), _) => simulation::simulate(&progress, &rest).map(success_message),
        (Some("mutation"), _) => mutation::mutate(&progress, &rest).map(success_message),
        (Some("prove"), _) => prove::prove(&progress, &rest).map(success_message),
        (Some("soak"), true) => soak::all(&progress),
        (Some("soak"), false) if rest == ["fuzz"] => fuzz::soak(&progress),
        (Some("soak"), false) if rest == ["redis"] => soak::REDIS.run(&progress),
        (Some("soak"), false) if rest == ["postgres"] => soak::POSTGRES.run(&progress),
        (Some("soak"), false) if rest == ["driver"] => soak::DRIVER.run(&progress),
        (Some("soak"), false) if rest == ["everything"] => soak::EVERYTHING.run(&progress),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(message) => {
            progress.step(&message);
            ExitCode::SUCCESS
        }
        Err(error) => {
            progress.step(&format!("failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn is_help(arg: &OsString) -> bool {
    ["help", "--help", "-h"].iter().any(|help| arg == help)
}

/// Handles `supervise SECONDS PROGRAM ARGS`, with which cargo starts test binaries and examples.
fn supervise(args: &[OsString]) -> ExitCode {
    let seconds = args.first().and_then(|seconds| seconds.to_str()?.parse().ok());
    let (Some(seconds), Some(program)) = (seconds, args.get(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let name = program.to_string_lossy();
    let mut command = Command::new(program);
    command.args(&args[2..]);
    match supervise::run(&mut command, Duration::from_secs(seconds), &name, &mut io::stdout()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {name} cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The message of a successful command.
fn success_message(_: ()) -> String {
    "done".to_owned()
}
