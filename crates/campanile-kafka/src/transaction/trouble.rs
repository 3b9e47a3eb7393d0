//! What an error of a transaction means.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::error::ConsumerError;

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    /// The same call again: how it came out is not known yet.
    Again,
    /// The transaction cannot be committed: abort it, and begin another.
    Abort,
    /// The producer can do nothing more.
    End,
}

impl Cure {
    /// As the client says itself.
    pub(super) fn of(error: &KafkaError) -> Self {
        match error {
            KafkaError::Transaction(error) if error.is_fatal() => Self::End,
            KafkaError::Transaction(error) if error.txn_requires_abort() => Self::Abort,
            KafkaError::Transaction(error) if error.is_retriable() => Self::Again,
            KafkaError::Transaction(_) => Self::End,
            // Not all outputs are acknowledged yet, and the transaction is still open.
            KafkaError::Flush(Code::OperationTimedOut) => Self::Again,
            _ => Self::Abort,
        }
    }
}

/// Whether what was refused so will be refused again.
pub(super) fn is_permanent(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    is_shared(error)
        || matches!(
            code,
            Some(
                Code::InvalidTopic
                    | Code::UnknownTopic
                    | Code::UnknownTopicOrPartition
                    | Code::UnknownPartition
                    | Code::TopicAuthorizationFailed
                    | Code::GroupAuthorizationFailed
            )
        )
}

/// Whether an output may be refused so because of another: brokers take all that is for a partition and
/// comes together, or nothing of it.
pub(super) fn is_shared(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::MessageSizeTooLarge
                | Code::MessageBatchTooLarge
                | Code::InvalidTimestamp
                | Code::InvalidRecord
                | Code::InvalidDifferentRecord
                | Code::PolicyViolation
        )
    )
}

/// Whether the brokers take nothing more from this producer.
fn is_fenced(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch))
}

/// Whether the brokers may say so of a transaction that they have aborted for its time.
pub(super) fn is_outlived(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    is_fenced(error)
        || matches!(code, Some(Code::InvalidTransactionalState | Code::InvalidProducerIdMapping))
}

/// What a transaction needs, and may not do.
pub(super) fn forbidden(error: &KafkaError) -> ConsumerError {
    let what = "a transaction is refused: allow this user to write to the topics of its outputs, and to \
                commit in its group";
    ConsumerError::kafka(what, Some(error.clone()))
}

/// Why there are no more transactions of this id.
pub(super) fn end(id: &str, error: KafkaError) -> ConsumerError {
    let what = match error.rdkafka_error_code() {
        _ if is_fenced(&error) => format!(
            "fenced: another producer has begun with `transactional.id` `{id}`; what this one has not \
             committed comes again. Give each instance an id of its own, and start this one again"
        ),
        Some(Code::TransactionalIdAuthorizationFailed) => format!(
            "`transactional.id` `{id}` may not be used: allow this user to write and describe it"
        ),
        Some(Code::InvalidTransactionTimeout) => "`transaction.timeout.ms` is above the brokers' \
             `transaction.max.timeout.ms`: lower it"
            .to_owned(),
        _ => format!("there can be no more transactions of `transactional.id` `{id}`"),
    };
    ConsumerError::kafka(what, Some(error))
}
