//! What librdkafka's errors mean for the consumer.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::context::Context;
use crate::driver::Event;
use crate::error::ConsumerError;

/// Takes in an error that librdkafka reports. Most it deals with itself.
pub(super) fn failed(
    context: &Context,
    error: KafkaError,
    reason: String,
    events: &mut Vec<Event>,
) {
    let started = context.state().started;
    match &error {
        KafkaError::PartitionEOF(_) => {}
        KafkaError::MessageConsumptionFatal(_) => {
            events.push(Event::Failed(ConsumerError::kafka(reason, Some(error))));
        }
        KafkaError::MessageConsumption(code) if is_unreadable(*code) => {
            let what =
                format!("{reason}; to skip such records, set the group's offset behind them");
            events.push(Event::Failed(ConsumerError::kafka(what, Some(error))));
        }
        KafkaError::MessageConsumption(code) if is_hopeless(*code, started) => {
            events.push(Event::Failed(ConsumerError::kafka(reason, Some(error))));
        }
        _ => tracing::warn!(error = reason, "kafka"),
    }
}

/// Returns whether there are records that are corrupt, or in a format that librdkafka does not know.
///
/// It goes on behind them, or where `auto.offset.reset` says, and what follows would be committed past
/// them.
fn is_unreadable(code: Code) -> bool {
    matches!(code, Code::BadMessage | Code::BadCompression | Code::NotImplemented)
}

/// Returns whether librdkafka would repeat for ever what cannot succeed.
fn is_hopeless(code: Code, started: bool) -> bool {
    match code {
        // `auto.offset.reset=error`: the partition is read by nobody from now on.
        Code::AutoOffsetReset => true,
        // At the start these are mistakes in the settings. Later they may be repaired where they
        // were made, while other partitions are processed.
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::InvalidGroupId
        | Code::InvalidSessionTimeout
        | Code::InconsistentGroupProtocol
        | Code::UnsupportedAssignor
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature => !started,
        _ => false,
    }
}
