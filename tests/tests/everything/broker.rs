//! The broker that all groups share.

use std::time::Duration;

use campanile_test::KafkaServer;
use campanile_test::history::FaultKind;

use crate::faults::Injector;

/// The pauses between two faults of the broker, in milliseconds.
const PAUSE: std::ops::Range<u64> = 10_000..35_000;

/// How often the broker looks for records to delete.
pub(crate) const RETENTION_INTERVAL: Duration = Duration::from_millis(300);

pub(crate) fn start() -> KafkaServer {
    KafkaServer::builder()
        .separate_controller()
        // The group soon notices dead members of the newer protocol, too.
        .property("group.consumer.session.timeout.ms", "6000")
        // A heartbeat that is not answered within its interval times out. If its response had another
        // assignment, librdkafka (2.12) never gets that again, and the group waits for the member.
        .property("group.consumer.heartbeat.interval.ms", "1500")
        .property("transaction.abort.timed.out.transaction.cleanup.interval.ms", "1000")
        .property("log.retention.check.interval.ms", &RETENTION_INTERVAL.as_millis().to_string())
        .property("log.initial.task.delay.ms", "500")
        // The judge needs every commit.
        .property("log.cleaner.enable", "false")
        .start()
        .unwrap()
}

/// Kills the broker, and fills its disk, until the campaign is over.
///
/// It is not suspended. A single broker that is suspended for longer than its session with the controller
/// is fenced, and Kafka (4.3.1) may then complete a transaction without writing its markers, so that
/// outputs are lost or visible twice.
pub(crate) fn inject_faults(kafka: &mut KafkaServer, mut injector: Injector<'_>) {
    while injector.pause(PAUSE) {
        let is_full = injector.rng.u8(..4) == 0;
        let name = if is_full { "broker's disk full" } else { "broker killed" };
        injector.inject(name, &FaultKind::BrokerKilled, Duration::ZERO, |injector| {
            if is_full {
                kafka.fill_disk().unwrap();
            } else {
                kafka.kill().unwrap();
            }
            injector.sleep(0..3_000);
            kafka.restart().unwrap();
        });
    }
}
