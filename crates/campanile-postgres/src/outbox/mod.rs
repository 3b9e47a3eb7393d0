//! The outbox: what handlers of the inbox give out for Kafka, committed with what else they write.
//!
//! * [`Transaction::publish`](crate::Transaction::publish) writes a message; `outgoing` is what the inbox
//!   knows of a transaction that does.
//! * [`Inbox::relay`](crate::Inbox::relay) publishes: `session` is its connection, of which one leads;
//!   `work` is what it has in hand, a `lane` for each key, what was `refused`, and
//!   which `topics` take nothing.

mod lane;
mod outgoing;
mod publish;
mod refused;
mod relay;
mod session;
mod topics;
mod work;

pub(crate) use self::outgoing::Outgoing;
