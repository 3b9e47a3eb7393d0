//! What a run would do, as far as the letters themselves say.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::Redrive;
use super::letter::{Letter, Plan};
use super::source::{Next, Source};
use crate::AdminError;

/// The number of different reasons that are counted separately.
const MAX_REASONS: usize = 1000;

/// The letters that a run would handle, by what it would do and by their reasons.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct RedrivePreview {
    /// Letters whose records would be produced, unless their keys prevent it.
    pub candidates: u64,
    /// Letters that would be parked, by the reason for that.
    pub parked: Vec<ReasonCount>,
    /// Letters that the filter does not select.
    pub filtered: u64,
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
}

impl RedrivePreview {
    pub(super) async fn read(settings: &Redrive, source: &mut Source) -> Result<Self, AdminError> {
        const WAIT: Duration = Duration::from_millis(500);
        let (mut preview, mut left) = (Self::default(), settings.max.unwrap_or(u64::MAX));
        let (mut parked, mut reasons) = (Reasons::default(), Reasons::default());
        while left > 0 {
            let letter = match source.next(WAIT).await? {
                Next::Letter(record) => Letter::new(record),
                Next::Idle | Next::Reassigned => continue,
                Next::End => break,
            };
            match letter.plan(settings) {
                Plan::Filter => {
                    preview.filtered += 1;
                    continue;
                }
                Plan::Reopen { .. } | Plan::Produce => preview.candidates += 1,
                Plan::Park(why) => parked.add(without_numbers(&why)),
            }
            reasons.add(reason(&letter));
            left -= 1;
        }
        (preview.parked, preview.reasons) = (parked.sorted(), reasons.sorted());
        Ok(preview)
    }
}

#[derive(Default)]
struct Reasons(HashMap<String, u64>);

impl Reasons {
    fn add(&mut self, reason: String) {
        let is_new = !self.0.contains_key(&reason);
        let reason =
            if is_new && self.0.len() >= MAX_REASONS { "other reasons".to_owned() } else { reason };
        *self.0.entry(reason).or_default() += 1;
    }

    fn sorted(self) -> Vec<ReasonCount> {
        let counts = self.0.into_iter().map(|(reason, letters)| ReasonCount { reason, letters });
        let mut counts: Vec<_> = counts.collect();
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

    #[test]
    fn reasons_that_differ_in_numbers_are_counted_together() {
        let mut reasons = Reasons::default();
        for text in ["payment 17 failed", "payment 4 failed", "timeout"] {
            reasons.add(without_numbers(text));
        }
        let count = |reason: &str, letters| ReasonCount { reason: reason.to_owned(), letters };
        assert_eq!(reasons.sorted(), [count("payment # failed", 2), count("timeout", 1)]);
    }

    #[test]
    fn number_of_reasons_is_bounded() {
        let mut reasons = Reasons::default();
        (0..MAX_REASONS + 10).for_each(|n| reasons.add(format!("reason {n}")));
        assert_eq!(
            reasons.sorted()[0],
            ReasonCount { reason: "other reasons".into(), letters: 10 }
        );
    }
}
