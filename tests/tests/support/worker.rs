//! A consumer in a process of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use campanile_test::{Process, RedisServer};
use tempfile::TempDir;

/// Session and heartbeat of a consumer that is soon missed.
pub(crate) const SOON_MISSED: &[&str] = &["session.timeout.ms=3000", "heartbeat.interval.ms=300"];

/// Starts one, with these options.
pub(crate) fn spawn(
    bootstrap: &str,
    group: &str,
    topic: &str,
    redis: &RedisServer,
    folder: &TempDir,
    options: &[&str],
) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
    let ledgers = ledgers(folder);
    fs::create_dir_all(&ledgers).unwrap();
    command.args([bootstrap, group, topic, &redis.url()]).arg(&ledgers);
    command.args(options);
    let log = folder.path().join(format!("log-{}", fastrand::u64(..)));
    Process::spawn(&command, log).unwrap()
}

/// Where each writes its ledger.
pub(crate) fn ledgers(folder: &TempDir) -> PathBuf {
    folder.path().join("ledgers")
}
