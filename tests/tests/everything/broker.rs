//! The broker that all groups share.

use std::time::Duration;

use campanile_test::KafkaServer;
use campanile_test::history::FaultKind;

use crate::faults::Injector;

/// The pauses between two kills, in milliseconds.
const PAUSE: std::ops::Range<u64> = 15_000..45_000;

pub(crate) fn start() -> KafkaServer {
    KafkaServer::builder()
        // The group soon notices dead members of the newer protocol, too.
        .property("group.consumer.session.timeout.ms", "5000")
        .property("transaction.abort.timed.out.transaction.cleanup.interval.ms", "1000")
        // The judge needs every commit.
        .property("log.cleaner.enable", "false")
        .start()
        .unwrap()
}

/// Kills and restarts the broker until the campaign is over.
pub(crate) fn inject_faults(kafka: &mut KafkaServer, mut injector: Injector<'_>) {
    while injector.pause(PAUSE) {
        injector.inject("broker killed", &FaultKind::BrokerKilled, Duration::ZERO, |injector| {
            kafka.kill().unwrap();
            injector.sleep(0..3_000);
            kafka.restart().unwrap();
        });
    }
}
