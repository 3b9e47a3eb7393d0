//! A broker that is killed and restarted.

use std::thread;

use campanile_test::KafkaServer;

use crate::scene::Scene;
use crate::verdict::Cause;
use crate::{records, setting};

/// Records produced per second, chosen so that production lasts for all outages.
const RATE: usize = 750;

#[test]
fn a_broker_that_is_killed_and_comes_back_costs_no_record_and_ends_no_consumer() {
    let mut kafka = KafkaServer::start().unwrap();
    let options = ["order=key", "lock_ms=5000", "session.timeout.ms=6000"];
    let mut scene = Scene::new("broker killed", &kafka, &options);
    let outages = setting("CAMPANILE_REBALANCE_OUTAGES", 1);
    scene.fill(records(), RATE, |rng| rng.u64(10..80));
    scene.start_all(2);
    for _ in 0..outages {
        thread::sleep(scene.pause());
        kafka.kill().unwrap();
        thread::sleep(scene.pause());
        kafka.restart().unwrap();
        // Consumption continues.
        scene.until_more_is_answered();
    }
    // The members are still running, and shut down properly.
    scene.end(Cause::LetGo);
}
