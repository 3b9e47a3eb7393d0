//! Model checking of the protocol's state machine: the [`step`](campanile_core::step()) that ships, and
//! not a model of it, runs in every history of some clients, up to a size.
//!
//! A state is the entry of one key, what each client is doing, and the commands that are under way. The
//! clients behave as the keeper does. At any moment, a command arrives, its answer is lost, a copy of it
//! is kept and arrives later, time passes, a process crashes, an operator redrives the key or takes its
//! lock, the store's clock is set, the entry's retention ends, the store loses the entry, or it fails over
//! to a replica with an earlier one. [`explore`] visits the states breadth-first, so that the history of a
//! [`Violation`] is a shortest one, and [`tell`] tells it in English. States that differ only in the order
//! of the clients or in the nonces are visited once.
//!
//! The rules are those of `docs/protocol.md`, each with its section. Rules about single steps are checked
//! on every distinct combination of entry, command and time; rules about histories in every state. If the
//! store's clock steps forward, its data is lost, or an operator takes a lock, the clients of that time
//! are exempt from the rules about histories, and nothing else is. [`MUTANTS`] are wrong versions of `step`,
//! each of which breaks a rule.
//!
//! # Not covered
//!
//! These rules are not about `step`, or not about what the model contains:
//!
//! * 6 (retention of each state), 8 (one acquisition per key in a process), 12 (runs without a lock) and
//!   13 (batches in Redis) are rules of the stores and of the keeper. The model's clients follow them.
//! * 15: the margin of a tenth, the rhythm of renewals, and clocks that slew. In the model, all clocks run at
//!   the same rate, and a deadline is the last send plus the whole TTL.
//! * 16 and 17: what is committed and produced in Kafka. The model checks that a reply that permits a commit
//!   is that of a settled entry.
//! * 18 (details) and the layout of an entry: no operation depends on them. The tests of `campanile-core`
//!   check both.
//! * 19 (expire) is no operation of `step`: it changes when an entry ends, and not the entry. The stores check
//!   its conditions, and the contract tests of `campanile-test` cover them. In the model, an entry ends with
//!   its retention, long after its last lock, or is lost at any time, which exempts its clients.
//! * Unreadable values, spare bytes and unknown kinds of tail: a store rejects or keeps them before or around
//!   `step`.
//! * Limits of `ttl`, `delay`, the error's text and a step's name: the model's clients send permitted values. The
//!   exact limit of the size of steps: a result has one byte, or is too large behind another. The tests of
//!   `campanile-core` check them.
//! * More than two steps, or steps in another order.
//! * Clients with different limits of attempts: all clients of a configuration have the same, or none.
//! * What only separate configurations have, together: steps with several payloads, with clocks that step or
//!   with lost data; payloads without a fingerprint with a redrive.
//! * Answers that are delayed: an answer arrives at the moment at which its command is applied, or never. The
//!   simulations delay answers.
//! * Different TTLs and backoffs: all clients have the longest TTL, and the same backoff.
//! * An entry that is lost and granted again within the same half hour: a loss and a failover let half an hour
//!   pass.
//! * Two states with the same 64-bit hash count as one.
//! * A floor that is more than a day ahead is refused by the clients.

mod action;
mod client;
mod compact;
mod config;
mod explore;
mod history;
mod mutants;
mod raw;
mod rules;
mod step;
mod stepper;
mod story;
mod world;

pub use self::config::{Config, Size};
pub use self::explore::{Report, Violation, explore};
pub use self::mutants::{Found, MUTANTS, Mutant};
pub use self::rules::{Rule, StepFn};
pub use self::story::tell;

/// Returns the number of rules.
pub fn rule_count() -> usize {
    rules::STEP_RULES.len() + history::HISTORY_RULES.len()
}
