//! The outbox: Kafka messages that handlers of the inbox commit together with their other writes.
//!
//! * [`Transaction::publish`](crate::Transaction::publish) writes a message;
//!   `message_counter` counts the messages of one transaction.
//! * [`Inbox::relay`](crate::Inbox::relay) publishes messages. `session` is its connection, of
//!   which one leads. `dispatcher` decides what is in flight: a `key_queue` of messages for each
//!   key, the messages that were `refused`, and the `topics` that accept none.

mod dispatcher;
mod key_queue;
mod message_counter;
mod metrics;
mod publish;
mod refused;
mod relay;
mod session;
mod topics;

pub(crate) use self::message_counter::MessageCounter;
