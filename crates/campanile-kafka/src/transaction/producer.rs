//! What librdkafka calls back about outputs.

use std::sync::{Mutex, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::ProducerContext;

/// An output that was not taken.
pub(super) struct Refused {
    /// Which record's it is, by its number in the batch.
    pub(super) number: usize,
    pub(super) topic: String,
    pub(super) error: KafkaError,
    /// Whether it was refused by itself, and not together with others.
    pub(super) alone: bool,
}

/// The first output of a transaction that the brokers do not take.
pub(super) struct Deliveries {
    /// Whether each output is sent alone.
    pub(super) alone: bool,
    refused: Mutex<Option<Refused>>,
}

impl Deliveries {
    pub(super) fn new(alone: bool) -> Self {
        Self { alone, refused: Mutex::default() }
    }

    /// This one was not taken.
    pub(super) fn refuse(&self, refused: Refused) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(refused);
    }

    pub(super) fn take(&self) -> Option<Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ProducerContext for Deliveries {
    /// The number of the record in its batch.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let Err((error, message)) = result else {
            return;
        };
        // What follows from an abort says nothing about the output.
        if matches!(error.rdkafka_error_code(), Some(Code::PurgeQueue | Code::PurgeInflight)) {
            return;
        }
        let (topic, error) = (message.topic().to_owned(), error.clone());
        self.refuse(Refused { number, topic, error, alone: self.alone });
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        crate::log::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "kafka, of the transactions");
    }

    fn stats_raw(&self, statistics: &[u8]) {
        crate::log::statistics(statistics);
    }
}
