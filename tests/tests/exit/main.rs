//! A process exits even if its handler and its brokers do not respond.
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::process::Command;
use std::time::Duration;

use campanile_test::{KafkaServer, Message, Process, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const TOPIC: &str = "endless";
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the exit may take, on a busy machine.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn second_signal_exits_despite_hanging_handler_and_brokers() {
    let mut kafka = KafkaServer::start().unwrap();
    kafka.create_topic(TOPIC, 1, &[]).unwrap();
    kafka.producer().produce(Message::to(TOPIC).partition(0)).unwrap();
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_endless"));
    command.args([&*kafka.bootstrap(), TOPIC]);
    let mut process = Process::spawn(&command, folder.path().join("log")).unwrap();
    wait_for_output(&process, "begun");

    kafka.pause().unwrap();
    let pid = Pid::from_raw(process.pid().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_for_output(&process, "draining");
    // The second signal.
    kill_process(pid, Signal::TERM).unwrap();
    let status = process.wait(EXIT_TIMEOUT).unwrap();
    let log = process.log().unwrap();
    assert!(status.is_some_and(|it| it.success()), "{status:?}: {log}");
    assert!(log.contains("processed: 0") && log.contains("unfinished: 1"), "{log}");
}

fn wait_for_output(process: &Process, word: &str) {
    let printed = || process.log().unwrap().contains(word).then_some(());
    eventually(TIMEOUT, printed)
        .unwrap_or_else(|| panic!("timed out waiting for `{word}`: {}", process.log().unwrap()));
}
