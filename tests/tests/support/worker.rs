//! A consumer in its own process.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use campanile_test::Process;
use tempfile::TempDir;

/// A short session timeout and heartbeat interval, so that the group soon notices a dead consumer.
pub(crate) const SHORT_SESSION: &[&str] = &["session.timeout.ms=3000", "heartbeat.interval.ms=300"];

/// Starts a worker with these options.
pub(crate) fn spawn(
    bootstrap: &str,
    group: &str,
    topic: &str,
    store: &str,
    folder: &TempDir,
    options: &[&str],
) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
    let ledgers = ledger_folder(folder);
    fs::create_dir_all(&ledgers).unwrap();
    command.args([bootstrap, group, topic, store]).arg(&ledgers);
    command.args(options);
    let log = folder.path().join(format!("log-{}", fastrand::u64(..)));
    Process::spawn(&command, log).unwrap()
}

/// The folder of the workers' ledgers.
pub(crate) fn ledger_folder(folder: &TempDir) -> PathBuf {
    folder.path().join("ledgers")
}
