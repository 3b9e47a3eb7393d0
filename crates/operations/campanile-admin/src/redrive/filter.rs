//! Which letters are brought back.

use std::time::SystemTime;

use campanile_core::{Record, millis};
use serde_json::{Value, json};

use super::letter::Letter;

/// Selects letters. A letter is selected if all of these match it. By default, every letter is.
///
/// ```
/// use campanile_admin::redrive::LetterFilter;
///
/// let filter = LetterFilter {
///     reason: Some("exhausted".into()),
///     headers: vec![("region".into(), "eu".into())],
///     ..LetterFilter::default()
/// };
/// # let _ = filter;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// The cause of the letter, such as `exhausted`, or a part of its error.
    pub reason: Option<String>,
    /// The earliest timestamp of the original record.
    pub since: Option<SystemTime>,
    /// The time before which the original record's timestamp is.
    pub until: Option<SystemTime>,
    /// The idempotency key.
    pub key: Option<Vec<u8>>,
    /// The partition of the dead-letter topic.
    pub partition: Option<i32>,
    /// Headers of the letter, which include those of its record: names and values.
    pub headers: Vec<(String, String)>,
}

impl LetterFilter {
    pub(super) fn matches(&self, letter: &Letter) -> bool {
        let Self { reason, since, until, key, partition, headers } = self;
        let (record, read) = (&letter.record, letter.headers.as_ref().ok());
        let time = letter.time();
        let is_reason = |reason: &str| {
            let read = read?;
            let in_error = read.error.as_ref().is_some_and(|error| error.contains(reason));
            (&*read.cause == reason || in_error).then_some(())
        };
        let is_key = |key: &[u8]| read?.key.as_ref().filter(|k| k.as_bytes() == key).map(drop);
        reason.as_deref().is_none_or(|reason| is_reason(reason).is_some())
            && since.is_none_or(|since| time.is_some_and(|time| time >= since))
            && until.is_none_or(|until| time.is_some_and(|time| time < until))
            && key.as_deref().is_none_or(|key| is_key(key).is_some())
            && partition.is_none_or(|partition| record.partition() == partition)
            && headers.iter().all(|header| has_header(record, header))
    }

    /// Returns everything that distinguishes this filter from others.
    pub(super) fn to_json(&self) -> Value {
        let Self { reason, since, until, key, partition, headers } = self;
        json!([reason, since.map(millis::of), until.map(millis::of), key, partition, headers])
    }
}

fn has_header(record: &Record, (name, expected): &(String, String)) -> bool {
    record.headers().all(name).flatten().any(|value| **value == *expected.as_bytes())
}
