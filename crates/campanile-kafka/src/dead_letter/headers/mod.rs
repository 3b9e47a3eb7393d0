//! The headers of a dead letter: where the record came from, and why it was given up.
//!
//! The record's own headers come first, unchanged, then those of the letter. Headers of an earlier
//! dead letter, of any style, are replaced: a letter that was sent back and failed again describes
//! only its last failure, and does not grow.

mod campanile;
mod cause;
mod connect;
#[cfg(test)]
mod fuzz;
mod read;
mod spring;

use bytes::Bytes;
use campanile_core::Record;

pub(crate) use self::cause::Cause;
pub use self::read::{InvalidLetter, LetterHeaders, LetterLock};
use crate::retry_topics::{CREATE_TIME, LOG_APPEND_TIME, time_header};

/// The style of the headers that say where a dead letter came from and why it was given up.
///
/// Campanile's own headers are present with every style: `campanile-cause` (the cause, as one
/// word), `campanile-key` (the idempotency key, as bytes), `campanile-namespace` and `campanile-token` (of the
/// lock), `campanile-attempts` and `campanile-give-ups` (decimal), as far as the record has them. A crash between the
/// publication of a letter and the update of its entry leaves a second copy of the letter. The copy
/// has the same key and the same original topic, partition and offset, but another token and one
/// more give-up, because it was published under a lock of its own. A letter that was too large also
/// has `campanile-truncated-payload-bytes`, the size of its payload, and
/// `campanile-truncated-headers`, the number of headers that were left out to keep the others below
/// 16 KiB.
///
/// Rust errors have no class at run time. Where a style has a class, the header contains
/// `campanile.` followed by the kind of failure: `AttemptFailed` (an attempt failed, and no further
/// attempt is allowed), `Exhausted` (no attempt was left; the last one crashed, or its record could
/// not be given up), `MissingKey`, `InvalidKey`, `Mismatch` (the key was used for another payload),
/// `DecodeError`, or `Error` for an error that does not come from Campanile's layers.
///
/// Messages are cut at 1 KiB and "stack traces" (the error and its sources, one per line) at 4 KiB.
/// Both styles together then take about a hundredth of the megabyte that Kafka allows for a record
/// by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `kafka_dlt-original-*` and `kafka_dlt-exception-*`, with partition, offset and timestamp in
    /// binary, as Spring for Apache Kafka's `DeadLetterPublishingRecoverer` writes them. The
    /// default, because more tools support these headers than any others.
    #[default]
    Spring,
    /// `__connect.errors.*`, all text, as Kafka Connect's `DeadLetterQueueReporter` writes them.
    /// The consumer group takes the place of the connector's name; there is no task. The record's
    /// timestamp, for which Connect has no header, is in `campanile-origin-create-time` or
    /// `campanile-origin-log-append-time`, in milliseconds.
    Connect,
    /// The headers of both Spring and Connect.
    Both,
}

/// A dead letter: a record that was given up, and why.
#[derive(Clone, Copy)]
pub(crate) struct Letter<'a> {
    pub(crate) record: &'a Record,
    pub(crate) group: &'a str,
    pub(crate) cause: &'a Cause,
    /// The lock under which the record is given up.
    pub(crate) lock: Option<&'a LetterLock>,
    /// Whether the payload is left out, because the whole record was too large for the topic or an
    /// earlier give-up was interrupted. Large headers are then left out as well.
    pub(crate) truncated: bool,
}

/// The name and the value of a header. The value may be null.
pub(crate) type Header = (String, Option<Bytes>);

/// The limit, in bytes, for the record's own headers in a truncated letter, and for its idempotency
/// key: as much as the letter's own headers may take.
const MAX_KEPT: usize = 16 * 1024;

/// The size of a header in addition to its name and its value, rounded up: the lengths, and the
/// bookkeeping of whatever stores the header.
const HEADER_OVERHEAD: usize = 16;

impl Letter<'_> {
    pub(crate) fn headers(&self, style: HeaderStyle) -> Vec<Header> {
        let (mut headers, omitted) = self.record_headers();
        if matches!(style, HeaderStyle::Spring | HeaderStyle::Both) {
            spring::add(self, &mut headers);
        }
        if matches!(style, HeaderStyle::Connect | HeaderStyle::Both) {
            connect::add(self, &mut headers);
        }
        if style == HeaderStyle::Connect
            && let Some((name, value)) = self.record.timestamp().map(time_header)
        {
            put(&mut headers, name, value);
        }
        campanile::add(self, omitted, &mut headers);
        headers
    }

    /// Takes the headers that the record came with, except those of an earlier dead letter, and
    /// counts the headers that were left out to keep the letter small. A header is left out if it
    /// is larger than the room that is left.
    fn record_headers(&self) -> (Vec<Header>, usize) {
        let mut room = if self.truncated { MAX_KEPT } else { usize::MAX };
        let mut omitted = 0;
        let mut headers = Vec::new();
        for (name, value) in
            self.record.headers().iter().filter(|(name, _)| !is_dead_letter_header(name))
        {
            let size = HEADER_OVERHEAD + name.len() + value.map_or(0, Bytes::len);
            match room.checked_sub(size) {
                Some(rest) => {
                    room = rest;
                    headers.push((name.to_owned(), value.cloned()));
                }
                None => omitted += 1,
            }
        }
        (headers, omitted)
    }
}

fn is_dead_letter_header(name: &str) -> bool {
    name.starts_with(spring::PREFIX)
        || name.starts_with(connect::PREFIX)
        || [CREATE_TIME, LOG_APPEND_TIME].contains(&name)
        || campanile::is_header(name)
}

/// Adds a header.
fn put(headers: &mut Vec<Header>, name: impl Into<String>, value: impl Into<Bytes>) {
    headers.push((name.into(), Some(value.into())));
}

#[cfg(test)]
mod tests;
