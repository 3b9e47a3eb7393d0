//! Consumers that are closed while the coordinator of their group is killed or hangs.

use std::process::Command;
use std::thread;
use std::time::Duration;

use campanile_test::{KafkaServer, Message, Process};

use crate::{env_or, seed};

const TOPIC: &str = "closes";
const PARTITIONS: i32 = 8;
const RECORDS: i32 = 4_000;
/// The consumers of each process. Two processes run at a time, one for each group protocol.
const CONSUMERS: u64 = 20;
/// The latest moment at which a consumer ends.
const MAX_MILLIS: u64 = 4_000;
/// How long a process may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn close_without_a_coordinator_crashes_no_process() {
    let mut kafka = KafkaServer::builder().separate_controller().start().unwrap();
    kafka.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    let message = |n: i32| Message::to(TOPIC).partition(n % PARTITIONS).payload("p");
    kafka.producer().produce_all((0..RECORDS).map(message)).unwrap();
    let closes = env_or("CAMPANILE_REBALANCE_CLOSES", 2 * CONSUMERS);
    let (seed, folder) = (seed(), tempfile::tempdir().unwrap());
    println!("closes: seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut closed, mut outages) = (0, 0);
    while closed < closes {
        let processes = ["classic", "consumer"].map(|protocol| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_closer"));
            command.args([&*kafka.bootstrap(), TOPIC, protocol]);
            for _ in 0..CONSUMERS {
                let how = ["shutdown", "now", "drop"][rng.usize(..3)];
                command.arg(format!("{how}={}", rng.u64(..MAX_MILLIS)));
            }
            let log = folder.path().join(format!("{protocol}-{outages}"));
            (protocol, Process::spawn(&command, log).unwrap())
        });
        thread::sleep(Duration::from_millis(rng.u64(500..3_000)));
        let hangs = rng.u8(..3) == 0;
        if hangs { kafka.pause() } else { kafka.kill() }.unwrap();
        thread::sleep(Duration::from_millis(rng.u64(..3_000)));
        if hangs { kafka.resume() } else { kafka.restart() }.unwrap();
        outages += 1;
        for (protocol, mut process) in processes {
            let status = process.wait(TIMEOUT).unwrap();
            let log = process.log().unwrap();
            assert!(status.is_some_and(|it| it.success()), "{protocol}: {status:?}: {log}");
            closed += CONSUMERS;
        }
    }
    println!("closes: {closed} consumers closed during {outages} outages, no crash; seed {seed}");
}
