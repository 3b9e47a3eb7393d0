//! Kafka to Kafka: what a handler gives out and the offsets of what it took in, committed together.
//!
//! A record's outputs are held back from its end until the watermark has passed it: a transaction has
//! the outputs of exactly those records that its offsets cover. They are kept until the brokers have
//! committed them, so that a transaction which is aborted is done again without the handler.
//!
//! * [`Transactions`] is what the user says, [`Outputs`] what a service answers with.
//! * `answer` finds in an answer what is to be sent: of a duplicate, what its first run has recorded.
//! * `pending` is what waits in memory, and is counted there.
//! * `transactor` belongs to the driver's thread: it says when which records are committed. `worker` is
//!   a thread of its own, with the producer, since all that it does there waits for brokers.
//! * `positions` fetches where partitions start that are newly assigned, from the `group`.

mod answer;
mod batch;
mod group;
mod output;
mod pending;
mod positions;
mod producer;
mod reply;
mod serve;
mod settings;
mod transactor;
mod trouble;
mod worker;

pub(crate) use self::answer::Answered;
pub use self::answer::IntoOutputs;
pub use self::output::Outputs;
pub(crate) use self::pending::{Outbox, Pending};
pub(crate) use self::positions::Position;
pub use self::reply::OutputsReply;
pub(crate) use self::settings::Terms;
pub use self::settings::Transactions;
pub(crate) use self::transactor::{Committed, Transactor};
