//! The headers of a dead letter: where the record came from, and why it was given up.
//!
//! The record's own headers come first, unchanged, then those of the letter. Headers of an earlier
//! dead letter, also of Kafka Connect's, are replaced: a letter that was sent back and failed again describes
//! only its last failure, and does not grow.

mod campanile;
mod cause;
#[cfg(test)]
mod fuzz;
mod read;
mod spring;

use bytes::Bytes;
use campanile_core::Record;

pub(crate) use self::cause::Cause;
pub use self::read::{InvalidLetter, LetterHeaders, LetterLock};

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

/// What the headers of Kafka Connect's dead letters begin with, its `DeadLetterQueueReporter.HEADER_PREFIX`.
const CONNECT_PREFIX: &str = "__connect.errors.";

/// The size of a header in addition to its name and its value, rounded up: the lengths, and the
/// bookkeeping of whatever stores the header.
const HEADER_OVERHEAD: usize = 16;

impl Letter<'_> {
    pub(crate) fn headers(&self) -> Vec<Header> {
        let (mut headers, omitted) = self.record_headers();
        spring::add(self, &mut headers);
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
        || name.starts_with(CONNECT_PREFIX)
        || campanile::is_header(name)
}

/// Adds a header.
fn put(headers: &mut Vec<Header>, name: impl Into<String>, value: impl Into<Bytes>) {
    headers.push((name.into(), Some(value.into())));
}

#[cfg(test)]
mod tests;
