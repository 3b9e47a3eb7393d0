//! The broker that all groups share.

use std::time::Duration;

use campanile_test::KafkaServer;
use campanile_test::history::{FaultKind, Peer};

use crate::faults::Injector;

/// The pauses between two faults of the broker, in milliseconds.
const PAUSE: std::ops::Range<u64> = 10_000..35_000;

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

/// Kills and suspends the broker until the campaign is over.
pub(crate) fn inject_faults(kafka: &mut KafkaServer, mut injector: Injector<'_>) {
    while injector.pause(PAUSE) {
        if injector.rng.u8(..3) == 0 {
            let kind = FaultKind::NetworkCut { process: None, peer: Peer::Broker };
            injector.inject("broker suspended", &kind, Duration::ZERO, |injector| {
                kafka.pause().unwrap();
                injector.sleep(200..6_000);
                kafka.resume().unwrap();
            });
        } else {
            injector.inject(
                "broker killed",
                &FaultKind::BrokerKilled,
                Duration::ZERO,
                |injector| {
                    kafka.kill().unwrap();
                    injector.sleep(0..3_000);
                    kafka.restart().unwrap();
                },
            );
        }
    }
}
