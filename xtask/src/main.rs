//! The program behind `cargo xtask`.

use clap::Parser;
use std::process::ExitCode;
use xtask::command::Cli;
use xtask::progress::Progress;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let progress = Progress::start();
    progress.finish(cli.run(&progress))
}
