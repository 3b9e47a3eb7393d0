use crate::Result;
use crate::install::install;
use crate::progress::{Progress, cargo};
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;

/// The programs behind `cargo xtask soak`, and how long they run unless the environment says so.
const SOAKED: &[&str] = &[
    "campanile-core",
    "campanile-idempotency",
    "campanile-redis",
    "campanile-test",
    "campanile-tests",
];
const LENGTHS: &[(&str, &str)] = &[
    ("CAMPANILE_DIFFERENTIAL_OPS", "1000000"),
    ("CAMPANILE_SIMULATION_CASES", "5000"),
    ("PROPTEST_CASES", "5000"),
    ("CAMPANILE_DURABILITY_ROUNDS", "20"),
];

/// Kafka and Redis to play with.
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

/// The long variants of the randomised tests.
pub(crate) fn soak(progress: &Progress) -> Result {
    install(progress)?;
    let mut command = cargo();
    command.args(["test", "--release"]);
    for package in SOAKED {
        command.args(["--package", package]);
    }
    for (variable, length) in LENGTHS {
        let length = env::var_os(variable).unwrap_or_else(|| length.into());
        command.env(variable, length);
    }
    // Seeds and counts are worth seeing although all is well.
    progress.run(command.args(["--", "--show-output"]))
}
