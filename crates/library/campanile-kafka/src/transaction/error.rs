//! Classification of the errors of transactions.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use campanile_driver::ConsumerError;

/// The reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Repeat the call: its result is not known yet.
    Retry,
    /// Abort the transaction, which cannot be committed, and begin another.
    Abort,
    /// Give up the producer, which can do nothing more.
    Fatal,
}

impl Recovery {
    /// Classifies an error as librdkafka does.
    pub(super) fn of(error: &KafkaError) -> Self {
        match error {
            KafkaError::Transaction(error) if error.is_fatal() => Self::Fatal,
            KafkaError::Transaction(error) if error.txn_requires_abort() => Self::Abort,
            KafkaError::Transaction(error) if error.is_retriable() => Self::Retry,
            KafkaError::Transaction(_) => Self::Fatal,
            // Some outputs are not acknowledged yet, and the transaction is still open.
            KafkaError::Flush(Code::OperationTimedOut) => Self::Retry,
            _ => Self::Abort,
        }
    }
}

/// Checks whether a retry would be refused with the same error.
pub(super) fn is_permanent(error: &KafkaError) -> bool {
    may_be_batch_error(error)
        || is_permission(error)
        || matches!(
            error.rdkafka_error_code(),
            Some(
                Code::InvalidTopic
                    | Code::UnknownTopic
                    | Code::UnknownTopicOrPartition
                    | Code::UnknownPartition
                    // Returned only for an output that is larger than the whole queue.
                    | Code::QueueFull
            )
        )
}

/// Checks whether another output may be the cause of this error: brokers accept or refuse the messages
/// that arrive together for a partition as a whole.
pub(super) fn may_be_batch_error(error: &KafkaError) -> bool {
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

/// Checks whether the brokers accept nothing more from this producer.
fn is_fenced(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch))
}

/// Checks whether the brokers report that no transaction of this producer is open: it has ended, or they
/// were unavailable when it began.
pub(super) fn is_not_open(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(Code::InvalidTransactionalState)
}

/// Checks whether the brokers may report this error for a transaction that they have aborted because it
/// exceeded its timeout.
pub(super) fn may_be_timeout(error: &KafkaError) -> bool {
    is_fenced(error) || error.rdkafka_error_code() == Some(Code::InvalidProducerIdMapping)
}

/// Checks whether the user may not produce to a topic, or commit for the group.
pub(super) fn is_permission(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed)
    )
}

/// Creates the error for a transaction that lacks a permission.
pub(super) fn permission_error(error: &KafkaError) -> ConsumerError {
    let what = "transaction refused: allow the user `Write` on each topic of its outputs, and `Read` on \
                the group";
    ConsumerError::kafka(what, Some(error.clone().into()))
}

/// Creates the error that ends all transactions with this id.
pub(super) fn fatal_error(id: &str, error: KafkaError) -> ConsumerError {
    let what = match error.rdkafka_error_code() {
        _ if is_fenced(&error) => format!(
            "fenced: another producer has started with `transactional.id` `{id}`; uncommitted records \
             are delivered again. Give each instance an id of its own, then restart this one"
        ),
        Some(Code::TransactionalIdAuthorizationFailed) => format!(
            "`transactional.id` `{id}` may not be used: allow the user `Write` on the transactional id"
        ),
        Some(Code::InvalidTransactionTimeout) => "`transaction.timeout.ms` exceeds the brokers' \
             `transaction.max.timeout.ms`: lower it"
            .to_owned(),
        _ => format!("the producer with `transactional.id` `{id}` failed and cannot continue"),
    };
    ConsumerError::kafka(what, Some(error.into()))
}
