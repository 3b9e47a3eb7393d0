//! What a run would do.

use std::collections::HashMap;
use std::time::Duration;

use campanile_core::Coordinates;
use campanile_idempotency::InspectStore;
use serde::Serialize;

use super::Redrive;
use super::decide::Decider;
use super::letter::{Letter, Plan};
use super::report::{LetterOutcome, as_text};
use super::run::{MAX_ROUND, MAX_ROUND_BYTES, WAITS};
use super::sink::Verb;
use super::source::{Next, Source};
use crate::AdminError;

/// The number of different reasons that are counted separately.
const MAX_REASONS: usize = 1000;

/// The letters that a run would handle, by what it would do and by their reasons.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct RedrivePreview {
    /// Letters with [`LetterOutcome::Reopened`]. Copies of a letter count each.
    pub reopened: u64,
    /// Letters with [`LetterOutcome::Produced`], by the reason for that.
    pub produced: Vec<ReasonCount>,
    /// Letters with [`LetterOutcome::Skipped`], by the reason for that.
    pub skipped: Vec<ReasonCount>,
    /// Letters with [`LetterOutcome::Deferred`], unless their keys are settled in time.
    pub deferred: Vec<ReasonCount>,
    /// Letters with [`LetterOutcome::Parked`], by the reason for that.
    pub parked: Vec<ReasonCount>,
    /// Letters that the filter does not select.
    pub filtered: u64,
    /// As of [`RedriveSummary`](super::RedriveSummary::handled_before).
    pub handled_before: u64,
    /// Why the selected letters were given up, most frequent first.
    pub reasons: Vec<ReasonCount>,
}

/// A number of letters with a common reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReasonCount {
    /// The reason. In errors, `#` is in place of each number.
    pub reason: String,
    /// The number of letters.
    pub letters: u64,
    /// The coordinates of one of these letters, such as `payments.dead/3@42`.
    #[serde(serialize_with = "as_text")]
    pub example: Coordinates,
}

impl RedrivePreview {
    pub(super) async fn read(
        settings: &Redrive,
        source: &mut Source,
        store: &impl InspectStore,
    ) -> Result<Self, AdminError> {
        const WAIT: Duration = Duration::from_millis(500);
        let mut counts = Counts::default();
        let mut decider = Decider::new(settings, store);
        let mut left = settings.max.unwrap_or(u64::MAX);
        let (mut letters, mut plans, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut is_end = left == 0;
        while !is_end {
            match source.next(WAIT).await? {
                Next::Letter(record) => {
                    let letter = Letter::new(record);
                    match letter.plan(settings) {
                        Plan::Filter => counts.filtered += 1,
                        plan => {
                            bytes += letter.record.size();
                            left -= 1;
                            letters.push(letter);
                            plans.push(plan);
                        }
                    }
                }
                Next::Idle | Next::Reassigned => {}
                Next::End => is_end = true,
            }
            is_end |= left == 0;
            if is_end || letters.len() >= MAX_ROUND || bytes >= MAX_ROUND_BYTES {
                let plans = std::mem::take(&mut plans);
                let verbs = decider.decide(source, &letters, plans, true).await?;
                letters.iter().zip(verbs).for_each(|(letter, verb)| counts.add(letter, verb));
                letters.clear();
                bytes = 0;
            }
        }
        Ok(Self { handled_before: source.handled_before, ..counts.finish() })
    }
}

#[derive(Default)]
struct Counts {
    reopened: u64,
    produced: Reasons,
    skipped: Reasons,
    deferred: Reasons,
    parked: Reasons,
    filtered: u64,
    reasons: Reasons,
}

impl Counts {
    fn add(&mut self, letter: &Letter, verb: Verb) {
        let at = letter.record.coordinates();
        match verb {
            Verb::Produce(LetterOutcome::Reopened, _) => self.reopened += 1,
            Verb::Produce(_, why) => self.produced.add(why.to_owned(), at),
            Verb::Skip(why) => self.skipped.add(why.to_owned(), at),
            Verb::Wait => self.deferred.add(WAITS.to_owned(), at),
            Verb::Park(why) => self.parked.add(without_numbers(&why), at),
            Verb::Filter => {}
        }
        self.reasons.add(reason(letter), at);
    }

    fn finish(self) -> RedrivePreview {
        RedrivePreview {
            reopened: self.reopened,
            produced: self.produced.sorted(),
            skipped: self.skipped.sorted(),
            deferred: self.deferred.sorted(),
            parked: self.parked.sorted(),
            filtered: self.filtered,
            handled_before: 0,
            reasons: self.reasons.sorted(),
        }
    }
}

/// The number of letters for each reason, and one of them.
#[derive(Default)]
struct Reasons(HashMap<String, (u64, Coordinates)>);

impl Reasons {
    fn add(&mut self, reason: String, at: &Coordinates) {
        let is_new = !self.0.contains_key(&reason);
        let reason =
            if is_new && self.0.len() >= MAX_REASONS { "other reasons".to_owned() } else { reason };
        self.0.entry(reason).or_insert_with(|| (0, at.clone())).0 += 1;
    }

    fn sorted(self) -> Vec<ReasonCount> {
        let count = |(reason, (letters, example))| ReasonCount { reason, letters, example };
        let mut counts: Vec<_> = self.0.into_iter().map(count).collect();
        counts.sort_by(|a, b| b.letters.cmp(&a.letters).then_with(|| a.reason.cmp(&b.reason)));
        counts
    }
}

fn reason(letter: &Letter) -> String {
    match &letter.headers {
        Err(invalid) => invalid.to_string(),
        Ok(headers) => {
            let error = headers.error.as_deref().unwrap_or("no error recorded");
            format!("{}: {}", headers.cause, without_numbers(error))
        }
    }
}

/// Replaces each number by `#`, so that errors that differ only in numbers are counted together.
fn without_numbers(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '0'..='9' if result.ends_with('#') => {}
            '0'..='9' => result.push('#'),
            c => result.push(c),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: i64) -> Coordinates {
        Coordinates { topic: "dead".into(), partition: 0, offset }
    }

    #[test]
    fn reasons_that_differ_in_numbers_are_counted_together() {
        let mut reasons = Reasons::default();
        for (offset, text) in (0..).zip(["payment 17 failed", "payment 4 failed", "timeout"]) {
            reasons.add(without_numbers(text), &at(offset));
        }
        let count = |reason: &str, letters, offset| ReasonCount {
            reason: reason.to_owned(),
            letters,
            example: at(offset),
        };
        assert_eq!(reasons.sorted(), [count("payment # failed", 2, 0), count("timeout", 1, 2)]);
    }

    #[test]
    fn number_of_reasons_is_bounded() {
        let mut reasons = Reasons::default();
        (0..MAX_REASONS + 10).for_each(|n| reasons.add(format!("reason {n}"), &at(0)));
        let first = &reasons.sorted()[0];
        assert_eq!((&*first.reason, first.letters), ("other reasons", 10));
    }
}
