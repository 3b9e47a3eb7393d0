//! The broker that all groups share.

use std::time::Duration;

use campanile_test::KafkaServer;
use campanile_test::history::{FaultKind, Peer};

use crate::faults::Injector;
use crate::length::env_or;

/// The pauses between two faults of the broker, in milliseconds.
const PAUSE: std::ops::Range<u64> = 10_000..35_000;

pub(crate) fn start() -> KafkaServer {
    KafkaServer::builder()
        // The group soon notices dead members of the newer protocol, too.
        .property("group.consumer.session.timeout.ms", "6000")
        // A heartbeat that is not answered within its interval times out. If its response had another
        // assignment, librdkafka (2.12) never gets that again, and the group waits for the member.
        .property("group.consumer.heartbeat.interval.ms", "1500")
        .property("transaction.abort.timed.out.transaction.cleanup.interval.ms", "1000")
        // The judge needs every commit.
        .property("log.cleaner.enable", "false")
        .start()
        .unwrap()
}

/// Kills the broker until the campaign is over, and suspends it if the environment asks for that.
pub(crate) fn inject_faults(kafka: &mut KafkaServer, mut injector: Injector<'_>) {
    let suspends = env_or("CAMPANILE_EVERYTHING_BROKER_SUSPENSIONS", 0) != 0;
    while injector.pause(PAUSE) {
        if suspends && injector.rng.u8(..3) == 0 {
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
