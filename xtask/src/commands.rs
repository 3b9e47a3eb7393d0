use crate::Result;
use crate::install::install;
use crate::progress::{Progress, cargo};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;

/// Starts Kafka, Redis and Postgres for manual use.
pub(crate) fn servers(progress: &Progress, args: &[OsString]) -> Result {
    install(progress)?;
    let mut command = cargo();
    command
        .args(["run", "--package", "campanile-test", "--example", "servers"])
        .arg("--")
        .args(args);
    // Replaces this process, so that only the servers handle Ctrl-C.
    Err(command.exec().into())
}

/// Runs the benchmarks.
pub(crate) fn bench(progress: &Progress, args: &[OsString]) -> Result {
    install(progress)?;
    let mut command = cargo();
    command.args(["run", "--release", "--package", "campanile-bench", "--"]).args(args);
    Err(command.exec().into())
}
