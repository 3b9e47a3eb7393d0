//! The outbox: Kafka messages that handlers of the inbox commit together with their other writes.
//!
//! * [`Transaction::publish`](crate::Transaction::publish) writes a message; `outgoing` tracks the
//!   messages of one transaction.
//! * [`Inbox::relay`](crate::Inbox::relay) publishes messages. `session` is its connection, of
//!   which one leads. `work` is its state: a `lane` of messages for each key, the messages that
//!   were `refused`, and the `topics` that accept none.

mod lane;
mod outgoing;
mod publish;
mod refused;
mod relay;
mod session;
mod topics;
mod work;

pub(crate) use self::outgoing::Outgoing;
