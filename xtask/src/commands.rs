use crate::Result;
use crate::install::install;
use crate::progress::{Progress, cargo};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;

/// Kafka, Redis and Postgres to play with.
pub(crate) fn servers(progress: &Progress, args: &[OsString]) -> Result {
    install(progress)?;
    let mut command = cargo();
    command
        .args(["run", "--package", "campanile-test", "--example", "servers"])
        .arg("--")
        .args(args);
    // Replaces this process, so that Ctrl-C is the servers' business alone.
    Err(command.exec().into())
}

/// The benchmarks.
pub(crate) fn bench(progress: &Progress, args: &[OsString]) -> Result {
    install(progress)?;
    let mut command = cargo();
    command.args(["run", "--release", "--package", "campanile-bench", "--"]).args(args);
    Err(command.exec().into())
}
