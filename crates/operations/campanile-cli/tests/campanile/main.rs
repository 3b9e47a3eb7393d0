//! The command `campanile`, run as a process on real servers.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod documents;
mod entries;
mod exits;
mod killed;
mod observe;
mod signals;
#[allow(dead_code, reason = "shared with the tests of the library, which need all of it")]
#[path = "../../../campanile-admin/tests/redrive/support.rs"]
mod support;
mod terminal;
#[cfg(feature = "store-tls")]
mod tls;

use std::process::{Command, Output};

use support::{KAFKA, Scene};

/// Creates the command with these arguments, and without settings of the environment.
fn campanile(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CAMPANILE_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// Creates a redrive of the scene's letters.
fn redrive(scene: &Scene, arguments: &[&str]) -> Command {
    let mut command = campanile(&["redrive", &scene.dead]);
    command.args(["--kafka", "session.timeout.ms=3000", "--kafka", "heartbeat.interval.ms=100"]);
    command.args(arguments);
    command.env("CAMPANILE_BROKERS", KAFKA.bootstrap()).env("CAMPANILE_STORE", scene.redis.url());
    command
}

/// Runs the command. Returns its exit code, and its output and errors as text.
fn finish(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}
