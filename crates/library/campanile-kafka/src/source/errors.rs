//! What librdkafka's errors mean for the consumer.

use campanile_driver::ConsumerError;
use campanile_driver::source::Event;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::context::Context;
use crate::config::missing_feature;

/// Handles an error that librdkafka reports. librdkafka recovers from most errors by itself.
pub(super) fn handle_error(
    context: &Context,
    error: KafkaError,
    reason: String,
    events: &mut Vec<Event>,
) {
    let started = context.state().started;
    if let Some(certificate) = &context.tls {
        certificate.note_error(&reason);
    }
    let reason = match error.rdkafka_error_code().and_then(missing_right) {
        Some(advice) => format!("{reason}; {advice}"),
        None => reason,
    };
    match &error {
        KafkaError::PartitionEOF(_) => {}
        KafkaError::MessageConsumptionFatal(_) => {
            events.push(Event::Failed(ConsumerError::kafka(reason, Some(error.into()))));
        }
        KafkaError::MessageConsumption(code) if is_unreadable(*code) => {
            let what = unreadable_text(&reason);
            events.push(Event::Failed(ConsumerError::kafka(what, Some(error.into()))));
        }
        KafkaError::MessageConsumption(code) if is_fatal(*code, started) => {
            events.push(Event::Failed(ConsumerError::kafka(reason, Some(error.into()))));
        }
        _ => {
            // Prefixed, because librdkafka may also log the same text.
            if let Some(suppressed) = context.log_limit.allow_text(&format!("error: {reason}")) {
                tracing::warn!(
                    error = reason,
                    suppressed,
                    "librdkafka reported an error; it retries by itself"
                );
            }
        }
    }
}

/// Says what to allow, if a consumer lacks a right.
fn missing_right(code: Code) -> Option<&'static str> {
    match code {
        Code::TopicAuthorizationFailed => Some("allow the user `Read` on the topic"),
        Code::GroupAuthorizationFailed => Some("allow the user `Read` on the group"),
        _ => None,
    }
}

/// Checks whether records are corrupt, or in a format that librdkafka does not know.
///
/// librdkafka continues after such records, or where `auto.offset.reset` says. Committing the
/// records that follow would lose the unreadable ones.
fn is_unreadable(code: Code) -> bool {
    matches!(code, Code::BadMessage | Code::BadCompression | Code::NotImplemented)
}

/// Adds what to do to librdkafka's reason.
fn unreadable_text(reason: &str) -> String {
    match missing_feature(reason) {
        Some(advice) => format!("{reason}; {advice}"),
        None => format!("{reason}; to skip such records, set the group's offset past them"),
    }
}

/// Checks whether librdkafka would retry forever without success.
fn is_fatal(code: Code, started: bool) -> bool {
    match code {
        // `auto.offset.reset=error`: librdkafka no longer reads the partition.
        Code::AutoOffsetReset => true,
        // At startup these errors are configuration mistakes. Later they may be fixed at their
        // source while other partitions are processed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zstd_record_without_the_feature_names_the_feature() {
        let reason =
            "Decompression (codec 0x4) of message at 7 of 99 bytes failed: Local: Not implemented";
        assert_eq!(
            unreadable_text(reason),
            format!(
                "{reason}; enable the feature `kafka-zstd` of `campanile`, or `zstd` of \
                 `campanile-kafka`"
            )
        );
        let corrupt = unreadable_text("CRC mismatch");
        assert_eq!(corrupt, "CRC mismatch; to skip such records, set the group's offset past them");
    }
}
