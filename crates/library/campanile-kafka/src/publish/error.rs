//! The error of a publication.

use std::error::Error;
use std::fmt;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// The reason why a message was not published.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// The message is too large for the topic, or for the producer.
    TooLarge,
    /// The topic does not accept the message's timestamp.
    Timestamp,
    /// Another error, which persisted until the publication timed out.
    Otherwise(String),
}

impl PublishError {
    pub(super) fn of(error: &KafkaError, reason: Option<String>, topic: &str) -> Self {
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge) => Self::TooLarge,
            Some(Code::InvalidTimestamp) => Self::Timestamp,
            // The cause of a timeout is the last error of the connection.
            Some(Code::MessageTimedOut) => Self::Otherwise(
                reason.map_or_else(|| error.to_string(), |r| format!("{error}: {r}")),
            ),
            // A producer that may write to no topic at all is refused before its first message.
            Some(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed) => {
                Self::Otherwise(format!("{error}; allow the user `Write` on the topic `{topic}`"))
            }
            _ => Self::Otherwise(error.to_string()),
        }
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("too large for the topic: raise its `max.message.bytes`"),
            Self::Timestamp => f.write_str("the topic does not accept the message's timestamp"),
            Self::Otherwise(text) => f.write_str(text),
        }
    }
}

impl Error for PublishError {}
