//! Forwards librdkafka's log to `tracing`.

use rdkafka::config::RDKafkaLogLevel;

pub(crate) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => {
            tracing::error!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Warning => {
            tracing::warn!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Debug => {
            tracing::debug!(target: "librdkafka", facility, "{message}");
        }
    }
}

pub(crate) fn statistics(statistics: &[u8]) {
    let statistics = String::from_utf8_lossy(statistics);
    tracing::info!(target: "librdkafka", facility = "STATS", "{statistics}");
}
