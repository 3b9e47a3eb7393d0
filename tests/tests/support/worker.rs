//! A consumer in a process of its own.

use std::fs;
use std::process::Command;

use campanile_test::{KafkaServer, Process, RedisServer};
use tempfile::TempDir;

/// Its ledger goes to the folder's `ledgers`.
pub(crate) fn spawn(
    kafka: &KafkaServer,
    group: &str,
    topic: &str,
    redis: &RedisServer,
    folder: &TempDir,
) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
    let ledgers = folder.path().join("ledgers");
    fs::create_dir_all(&ledgers).unwrap();
    command.args([&kafka.bootstrap(), group, topic, &redis.url()]).arg(&ledgers);
    let log = folder.path().join(format!("log-{}", fastrand::u64(..)));
    Process::spawn(&command, log).unwrap()
}
