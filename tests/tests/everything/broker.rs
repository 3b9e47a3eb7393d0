//! The broker that all groups share.

use std::time::Duration;

use campanile_test::KafkaServer;
use campanile_test::history::FaultKind;

use crate::faults::Injector;

/// The pauses between two faults of the broker, in milliseconds.
const PAUSE: std::ops::Range<u64> = 10_000..35_000;

pub(crate) fn start() -> KafkaServer {
    KafkaServer::builder()
        .separate_controller()
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

/// Kills the broker until the campaign is over.
///
/// It is not suspended. A single broker that is suspended for longer than its session with the controller
/// is fenced, and Kafka (4.3.1) may then complete a transaction without writing its markers, so that
/// outputs are lost or visible twice.
pub(crate) fn inject_faults(kafka: &mut KafkaServer, mut injector: Injector<'_>) {
    while injector.pause(PAUSE) {
        let kind = FaultKind::BrokerKilled;
        injector.inject("broker killed", &kind, Duration::ZERO, |injector| {
            kafka.kill().unwrap();
            injector.sleep(0..3_000);
            kafka.restart().unwrap();
        });
    }
}
