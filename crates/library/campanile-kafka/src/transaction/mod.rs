//! Kafka to Kafka: commits a handler's outputs and the offsets of its input records in one
//! transaction.
//!
//! The outputs of a finished record are held back until the watermark has passed the record, so that
//! a transaction contains the outputs of exactly the records that its offsets cover. Outputs are kept
//! until the brokers have committed them, so that an aborted transaction is retried without running
//! the handler again.
//!
//! * [`Transactions`] is the user's configuration, [`Outputs`] the response of a service.
//! * `into_outputs` extracts the messages to send from a response: for a duplicate, the messages that the
//!   first run recorded.
//! * `pending` holds the outputs that wait in memory, and counts them in the budget.
//! * `committer` runs on the driver's thread and decides which records are committed, and when.
//!   `worker` owns the producer and runs on a thread of its own, since all of its calls wait for
//!   brokers.
//! * `group` reads the offsets that are committed.

mod committer;
mod content;
mod context;
mod error;
#[cfg(test)]
mod fuzz;
mod group;
mod into_outputs;
mod output;
mod pending;
mod reply;
mod settings;
mod worker;

pub(crate) use self::committer::{Committer, TransactionResult};
pub(crate) use self::group::GroupOffsets;
pub use self::into_outputs::IntoOutputs;
pub(crate) use self::into_outputs::outputs_of;
pub use self::output::Outputs;
pub(crate) use self::pending::{PendingOutputs, RecordOutputs};
pub use self::reply::OutputsCodec;
pub(crate) use self::settings::TransactionSettings;
pub use self::settings::Transactions;
