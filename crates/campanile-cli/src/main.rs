//! The command `campanile`: parses arguments, calls `campanile-admin`, and prints the results.

use std::process::ExitCode;

use clap::Parser;

/// Inspects and repairs what Campanile keeps in Kafka and in its stores.
#[derive(Debug, Parser)]
#[command(name = "campanile", version)]
struct Cli {}

fn main() -> ExitCode {
    let Cli {} = Cli::parse();
    ExitCode::SUCCESS
}
