//! What was done with the letters.

use std::borrow::Cow;
use std::fmt;

use campanile_core::{BoxError, Coordinates};
use serde::{Serialize, Serializer};

use super::letter::Letter;

/// What was done with a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LetterOutcome {
    /// Its key was reopened by this run, and its record produced back.
    Reopened,
    /// Only its record was produced back: its key had been reopened before, by another run or by an
    /// operator, or, if you allow these, its key has no entry or it held no lock.
    Produced,
    /// Nothing is left to do for its record.
    Skipped,
    /// Its key is still being processed. The letter is handled again by the next run.
    Deferred,
    /// Its record cannot be produced back. The letter stays in its topic, and was copied to the
    /// parking topic if one is named.
    Parked,
    /// The filter does not select it.
    Filtered,
}

impl fmt::Display for LetterOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One line of the audit: a letter, and what was done with it.
///
/// Serializes as an object with the fields' names. Coordinates are texts such as `payments/3@42`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LetterReport {
    /// The coordinates of the letter.
    #[serde(serialize_with = "as_text")]
    pub letter: Coordinates,
    /// The coordinates of its record, if the letter is valid.
    #[serde(serialize_with = "as_optional_text", skip_serializing_if = "Option::is_none")]
    pub origin: Option<Coordinates>,
    /// The idempotency key, with bytes that are not printable escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The cause of the letter, as one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<str>>,
    /// What was done with the letter.
    pub outcome: LetterOutcome,
    /// Why.
    pub detail: Cow<'static, str>,
    /// The topic to which the letter was copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked_to: Option<Box<str>>,
}

impl LetterReport {
    pub(super) fn new(
        letter: &Letter,
        outcome: LetterOutcome,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        let headers = letter.headers.as_ref().ok();
        let key = headers.and_then(|headers| headers.key.as_ref());
        Self {
            letter: letter.record.coordinates().clone(),
            origin: headers.map(|headers| headers.origin.clone()),
            key: key.map(|key| key.to_text().into_owned()),
            cause: headers.map(|headers| headers.cause.clone()),
            outcome,
            detail: detail.into(),
            parked_to: None,
        }
    }
}

pub(super) fn as_text<S: Serializer>(
    text: &impl fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(text)
}

fn as_optional_text<S: Serializer>(
    text: &Option<impl fmt::Display>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match text {
        Some(text) => serializer.collect_str(text),
        None => serializer.serialize_none(),
    }
}

/// Receives the audit and the progress of a run.
pub trait RedriveObserver {
    /// Called when the number of letters that are left in the assigned partitions changes otherwise
    /// than by [`handled`](Self::handled): at the start, and when partitions are assigned. It is an
    /// upper bound. Does nothing by default.
    fn remaining(&mut self, letters: u64) {
        let _ = letters;
    }

    /// Called with the letters that were handled, before their offsets are committed.
    ///
    /// # Errors
    /// An error ends the run. The offsets of these letters are not committed.
    fn handled(&mut self, reports: &[LetterReport]) -> Result<(), BoxError>;
}

/// An observer that discards everything.
impl RedriveObserver for () {
    fn handled(&mut self, _: &[LetterReport]) -> Result<(), BoxError> {
        Ok(())
    }
}

/// The number of letters with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RedriveSummary {
    /// Letters with [`LetterOutcome::Reopened`].
    pub reopened: u64,
    /// Letters with [`LetterOutcome::Produced`].
    pub produced: u64,
    /// Letters with [`LetterOutcome::Skipped`].
    pub skipped: u64,
    /// Letters with [`LetterOutcome::Deferred`].
    pub deferred: u64,
    /// Letters with [`LetterOutcome::Parked`].
    pub parked: u64,
    /// Letters with [`LetterOutcome::Filtered`].
    pub filtered: u64,
    /// Letters that earlier runs of the group had handled, at most: the offsets before the first letter
    /// that this run, or another one at the same time, could handle. Another group handles them again.
    pub handled_before: u64,
    /// Whether the caller stopped the run before it had handled all letters.
    pub interrupted: bool,
}

impl RedriveSummary {
    pub(super) fn add(&mut self, report: &LetterReport) {
        *match report.outcome {
            LetterOutcome::Reopened => &mut self.reopened,
            LetterOutcome::Produced => &mut self.produced,
            LetterOutcome::Skipped => &mut self.skipped,
            LetterOutcome::Deferred => &mut self.deferred,
            LetterOutcome::Parked => &mut self.parked,
            LetterOutcome::Filtered => &mut self.filtered,
        } += 1;
    }
}
