//! What librdkafka calls back about publications.

use std::sync::{Mutex, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;
use tokio::sync::oneshot;

/// Who waits for the acknowledgement.
pub(super) type Waiting = oneshot::Sender<Result<(), KafkaError>>;

/// Passes acknowledgements on to who waits for them.
#[derive(Default)]
pub(super) struct Acknowledgements {
    /// What the connections met last.
    reason: Mutex<Option<String>>,
}

impl Acknowledgements {
    pub(super) fn take_reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ProducerContext for Acknowledgements {
    type DeliveryOpaque = Box<Waiting>;

    fn delivery(&self, result: &DeliveryResult<'_>, waiting: Box<Waiting>) {
        let result = match result {
            Ok(_) => {
                // What was met before is over.
                self.take_reason();
                Ok(())
            }
            Err((error, _)) => Err(error.clone()),
        };
        // Dropped meanwhile: then nobody wants to know.
        let _ = waiting.send(result);
    }
}

impl ClientContext for Acknowledgements {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        crate::log::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "kafka, of the producer");
        let text = if reason.is_empty() { error.to_string() } else { reason.to_owned() };
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        crate::log::statistics(statistics);
    }
}
