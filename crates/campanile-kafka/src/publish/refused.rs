//! Why a message was not published.

use std::error::Error;
use std::fmt;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Why a message was not published.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// Too large for the topic, or for the producer.
    TooLarge,
    /// The topic does not take messages of its time.
    Timestamp,
    /// For another reason, until its time was up.
    Otherwise(String),
}

impl Refused {
    pub(super) fn of(error: &KafkaError, reason: Option<String>) -> Self {
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge) => Self::TooLarge,
            Some(Code::InvalidTimestamp) => Self::Timestamp,
            // The reason of a time-out is what the connection has met.
            Some(Code::MessageTimedOut) => Self::Otherwise(
                reason.map_or_else(|| error.to_string(), |r| format!("{error}: {r}")),
            ),
            _ => Self::Otherwise(error.to_string()),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("too large for the topic: raise its `max.message.bytes`"),
            Self::Timestamp => f.write_str("the topic does not take messages of this time"),
            Self::Otherwise(text) => f.write_str(text),
        }
    }
}

impl Error for Refused {}
