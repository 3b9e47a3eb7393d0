//! What a dead letter's headers say: where the record came from, and why it died.
//!
//! First the record's own headers, as they are, then the letter's. What an earlier death has left
//! behind, of whatever style, is replaced: a letter that was sent back and died again tells of its
//! last death alone, and does not grow.

mod cause;
mod connect;
mod own;
mod spring;

use bytes::Bytes;
use campanile_core::{FencingToken, Record};

pub(crate) use self::cause::Cause;

/// Whose tools are to read where a dead letter came from and why.
///
/// The letter's own headers are there with each of them: `campanile-cause` (a word for it),
/// `campanile-key` (the idempotency key, as bytes), `campanile-token`, `campanile-attempts` and
/// `campanile-burials` (decimal), as far as the record has them. A second
/// copy of a letter, which a crash between its publication and the record of it leaves, tells the same
/// key and the same original topic, partition and offset, but another token, and one burial more: it
/// was published under a lock of its own.
/// A letter that was too large has `campanile-truncated-payload-bytes` and
/// `campanile-truncated-headers`: how large the payload was, and how many headers were left out to
/// keep the others below 16 KiB.
///
/// Rust's errors have no class at run time. Where a style has one there is `campanile.` and the kind
/// of death: `Failed` (an attempt, and there is no other), `Exhausted` (no attempt was left, the last
/// one crashed or could not be buried), `MissingKey`, `InvalidKey`, `Mismatch` (the key was used for
/// another payload), `DecodeError`, or `Error` for an error that is not of Campanile's layers.
///
/// Messages are cut at 1 KiB and "stack traces" (the error and its sources, a line each) at 4 KiB, so
/// that both styles together take about a hundredth of the megabyte that a record may have by
/// Kafka's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `kafka_dlt-original-*` and `kafka_dlt-exception-*`, with partition, offset and timestamp in
    /// binary: as Spring for Apache Kafka's `DeadLetterPublishingRecoverer`. The default, because the
    /// most tools know them.
    #[default]
    Spring,
    /// `__connect.errors.*`, all text: as Kafka Connect's `DeadLetterQueueReporter`. The group stands
    /// for the connector's name; there is no task.
    Connect,
    /// Those of Spring, and those of Connect.
    Both,
}

/// A record that died.
#[derive(Clone, Copy)]
pub(crate) struct Letter<'a> {
    pub(crate) record: &'a Record,
    pub(crate) group: &'a str,
    pub(crate) cause: &'a Cause,
    /// Of the lock under which it is buried.
    pub(crate) token: Option<FencingToken>,
    /// Whether its payload is left out, because the whole record was too large for the topic: then
    /// large headers are, too.
    pub(crate) truncated: bool,
}

/// A name and a value, which may be null.
pub(crate) type Header = (String, Option<Bytes>);

/// How much of the record's own headers a truncated letter keeps, and the longest idempotency key:
/// as much as a letter's own headers may take.
const KEPT: usize = 16 * 1024;

/// What a header takes beside its name and its value, rounded up: lengths, and whoever keeps it.
const OVERHEAD: usize = 16;

impl Letter<'_> {
    /// All headers, in their order.
    pub(crate) fn headers(&self, style: HeaderStyle) -> Vec<Header> {
        let (mut headers, left_out) = self.of_the_record();
        if matches!(style, HeaderStyle::Spring | HeaderStyle::Both) {
            spring::add(self, &mut headers);
        }
        if matches!(style, HeaderStyle::Connect | HeaderStyle::Both) {
            connect::add(self, &mut headers);
        }
        own::add(self, left_out, &mut headers);
        headers
    }

    /// Those that the record came with, without an earlier death's, and how many were left out to
    /// keep the letter small: each that is larger than the room that is left.
    fn of_the_record(&self) -> (Vec<Header>, usize) {
        let mut room = if self.truncated { KEPT } else { usize::MAX };
        let mut left_out = 0;
        let mut headers = Vec::new();
        for (name, value) in self.record.headers().iter().filter(|(name, _)| !is_ours(name)) {
            let size = OVERHEAD + name.len() + value.map_or(0, Bytes::len);
            match room.checked_sub(size) {
                Some(rest) => {
                    room = rest;
                    headers.push((name.to_owned(), value.cloned()));
                }
                None => left_out += 1,
            }
        }
        (headers, left_out)
    }
}

/// Whether a letter has a header of this name, in any style.
fn is_ours(name: &str) -> bool {
    name.starts_with(spring::PREFIX) || name.starts_with(connect::PREFIX) || own::is_one(name)
}

/// Adds a header.
fn put(headers: &mut Vec<Header>, name: impl Into<String>, value: impl Into<Bytes>) {
    headers.push((name.into(), Some(value.into())));
}

#[cfg(test)]
mod tests;
