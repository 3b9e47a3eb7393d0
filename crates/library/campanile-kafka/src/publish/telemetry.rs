//! The metrics of a producer.

use std::time::Duration;

use campanile_core::telemetry::instruments::{self, KAFKA, OPERATION_NAME, OPERATION_TYPE, SYSTEM};
use campanile_core::telemetry::{Counter, DeliveryError, Family, ResultHistogram};

use super::PublishError;

/// The metrics of a producer. They have no topic: the number of topics is not known to be small.
pub(crate) struct ProducerMetrics {
    durations: ResultHistogram<DeliveryError>,
    sent: Counter,
    failed: Family<DeliveryError, Counter>,
}

impl ProducerMetrics {
    pub(crate) fn new() -> Self {
        let labels = &[(SYSTEM, KAFKA), (OPERATION_NAME, "send"), (OPERATION_TYPE, "send")];
        Self {
            durations: ResultHistogram::new(&instruments::OPERATION_DURATION, labels),
            sent: Counter::new(&instruments::SENT_MESSAGES, &labels[..2]),
            failed: Family::new(&instruments::SENT_MESSAGES, &labels[..2]),
        }
    }

    /// Counts a message that was handed to the producer.
    pub(crate) fn count_sent(&self) {
        self.sent.increment(1);
    }

    /// Records a publication that has ended.
    pub(crate) fn record(&self, result: &Result<(), PublishError>, duration: Duration) {
        let error = match result {
            Ok(()) => None,
            Err(PublishError::TooLarge) => Some(DeliveryError::TooLarge),
            Err(PublishError::Timestamp) => Some(DeliveryError::Timestamp),
            Err(PublishError::Otherwise(_)) => Some(DeliveryError::Other),
        };
        match error {
            None => self.sent.increment(1),
            Some(error) => self.failed.of(error).increment(1),
        }
        self.durations.record(error, duration.as_secs_f64());
    }
}
