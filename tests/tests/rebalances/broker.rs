//! A broker that is killed and restarted.

use std::thread;

use campanile_test::KafkaServer;
use campanile_test::history::{Cause, FaultKind};

use crate::scenario::Scenario;
use crate::{env_or, record_count};

/// Records produced per second, chosen so that production lasts for all outages.
const RECORDS_PER_SECOND: usize = 750;

#[test]
fn broker_restart_loses_no_record_and_ends_no_consumer() {
    // A node that is its own controller may lose its groups when it restarts.
    let mut kafka = KafkaServer::builder().separate_controller().start().unwrap();
    let options = ["session.timeout.ms=6000"];
    let mut scenario = Scenario::new("broker killed", &kafka, 5_000, &options);
    let outages = env_or("CAMPANILE_REBALANCE_OUTAGES", 1);
    scenario.start_producing(record_count(), RECORDS_PER_SECOND, |rng| rng.u64(10..80));
    scenario.start_members(2);
    for _ in 0..outages {
        thread::sleep(scenario.random_pause());
        let from = scenario.history.recorder.now();
        kafka.kill().unwrap();
        thread::sleep(scenario.random_pause());
        kafka.restart().unwrap();
        let recorder = &scenario.history.recorder;
        recorder.fault(from, Some(recorder.now()), FaultKind::BrokerKilled);
        // Consumption continues.
        scenario.wait_for_progress();
    }
    // The members are still running, and shut down properly.
    let report = scenario.judge(&[Cause::Dropped]);
    scenario.finish(report);
}
