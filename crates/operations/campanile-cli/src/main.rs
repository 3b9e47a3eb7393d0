//! The command `campanile`: parses arguments, calls `campanile-admin`, and prints the results.

mod doctor;
mod exit;
mod explain;
#[cfg(test)]
mod fuzz;
mod inspect;
mod list;
mod migrate;
mod observe;
mod options;
mod print;
mod purge;
mod redrive;
mod repair;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::exit::Exit;

/// Inspects and repairs what Campanile keeps in Kafka and in its stores.
#[derive(Debug, Parser)]
#[command(name = "campanile", version, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Doctor(doctor::Arguments),
    Expire(repair::Expire),
    Explain(explain::Arguments),
    Inspect(inspect::Arguments),
    List(list::Arguments),
    Migrate(migrate::Arguments),
    Observe(observe::Arguments),
    Purge(purge::Arguments),
    Redrive(redrive::Arguments),
    Reopen(repair::Reopen),
    Unlock(repair::Unlock),
}

fn main() -> ExitCode {
    // Exits with the code of `Exit::Usage` if the arguments are wrong.
    let Cli { verb } = Cli::parse();
    let level = match &verb {
        // The warnings of the stores are findings of the report.
        Verb::Doctor(_) => "off",
        _ => "warn",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(false).init();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return Exit::report(&error, Exit::Unavailable),
    };
    let result = runtime.block_on(async {
        match verb {
            Verb::Doctor(arguments) => doctor::run(arguments).await,
            Verb::Expire(arguments) => repair::expire(arguments).await,
            Verb::Explain(arguments) => explain::run(arguments).await,
            Verb::Inspect(arguments) => inspect::run(arguments).await,
            Verb::List(arguments) => list::run(arguments).await,
            Verb::Migrate(arguments) => migrate::run(arguments).await,
            Verb::Observe(arguments) => observe::run(arguments).await,
            Verb::Purge(arguments) => purge::run(arguments).await,
            Verb::Redrive(arguments) => redrive::run(arguments).await,
            Verb::Reopen(arguments) => repair::reopen(arguments).await,
            Verb::Unlock(arguments) => repair::unlock(arguments).await,
        }
    });
    // A call of librdkafka that was given up may still block a thread, which dropping the runtime would
    // wait for.
    runtime.shutdown_background();
    match result {
        Ok(exit) => exit.into(),
        Err(error) => Exit::report(&error, Exit::of(&error)),
    }
}
