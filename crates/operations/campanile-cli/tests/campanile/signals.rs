//! Signals while a verb waits.

use std::net::TcpListener;
use std::time::Duration;

use campanile_test::{Process, RedisServer, eventually};

use crate::campanile;

const TIMEOUT: Duration = Duration::from_secs(30);

fn terminate(process: &Process) {
    let kill = format!("kill {}", process.pid());
    let status = std::process::Command::new("sh").args(["-c", &kill]).status();
    assert!(status.unwrap().success());
}

#[test]
fn second_signal_ends_a_redrive_that_waits_for_kafka() {
    let redis = RedisServer::start().unwrap();
    let broker = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = campanile(&["redrive", "signals.dead", "--timeout", "1h"]);
    command.env("CAMPANILE_BROKERS", broker.local_addr().unwrap().to_string());
    command.env("CAMPANILE_STORE", redis.url());
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::spawn(&command, folder.path().join("log")).unwrap();
    // It connects, and receives no answer.
    broker.set_nonblocking(true).unwrap();
    let accept = || broker.accept().ok();
    let _connection = eventually(TIMEOUT, accept).expect("the process connects");
    terminate(&process);
    let is_stopping = || process.log().unwrap().contains("stopping").then_some(());
    eventually(TIMEOUT, is_stopping).expect("the first signal is received");
    terminate(&process);
    let status = process.wait(TIMEOUT).unwrap().expect("the second signal ends the process");
    assert_eq!(status.code(), Some(130), "{}", process.log().unwrap());
}
