//! The callbacks of the consumer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// The callbacks of the consumer.
#[derive(Default)]
pub(super) struct Context {
    assignment: Mutex<Assignment>,
    last_error: Mutex<Option<String>>,
}

/// The state of the group's assignment.
#[derive(Clone, Copy, Default)]
pub(super) struct Assignment {
    /// The number of changes.
    pub(super) generation: u64,
    pub(super) is_assigned: bool,
}

impl Context {
    pub(super) fn assignment(&self) -> MutexGuard<'_, Assignment> {
        self.assignment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_last_error(&self, error: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

impl ClientContext for Context {
    fn error(&self, error: KafkaError, reason: &str) {
        // Not an error, but an event.
        if error.rdkafka_error_code() == Some(Code::PartitionEOF) {
            return;
        }
        self.set_last_error(if reason.is_empty() { error.to_string() } else { reason.to_owned() });
    }
}

impl ConsumerContext for Context {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut assignment = self.assignment();
        assignment.generation += 1;
        assignment.is_assigned = matches!(rebalance, Rebalance::Assign(_));
    }
}
