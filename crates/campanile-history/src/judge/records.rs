//! The rules of records: each is finished, answered only after its effect, and has one key.

use super::findings::Findings;
use super::index::Index;
use crate::{Event, Outcome, Rule};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    for (number, record) in index.records.iter().enumerate() {
        if let (Some(origin), None) = (record.origin, record.finished) {
            let name = index.record_name(number);
            let text = || format!("{name} was not finished by the end of the history");
            let runs = record.key.map(|key| &index.keys[key].runs[..]).unwrap_or_default();
            let of_record = runs.iter().map(|&run| &index.runs[run]);
            let of_record = of_record.filter(|run| run.record == number);
            let events = of_record.flat_map(|run| [Some(run.begin), run.end.map(|end| end.event)]);
            findings.violation(
                Rule::Lost,
                &name,
                text,
                [origin].into_iter().chain(events.flatten()),
            );
        }
    }
    for answer in &index.answers {
        let is_shown = match answer.outcome {
            Outcome::Processed | Outcome::Unguarded => answer.run.is_some(),
            // Nothing is known about a record without a key.
            Outcome::Duplicate => index.records[answer.record].key.is_none_or(|key| {
                index.keys[key].first_success.is_some_and(|success| success <= answer.at)
            }),
            Outcome::GivenUp => index.records[answer.record].key.is_none_or(|key| {
                let key = &index.keys[key];
                // The runs are in the order of their begins.
                key.runs.first().is_some_and(|&run| index.runs[run].began <= answer.at)
                    || index.uncounted_since_sent(key, answer.at) > 0
            }),
            Outcome::Error | Outcome::Dropped => true,
        };
        if !is_shown {
            let name = index.record_name(answer.record);
            let text = || match answer.outcome {
                Outcome::GivenUp => {
                    format!("{name} was answered as given up, and no handler had begun before")
                }
                _ => {
                    format!("{name} was answered as done, and no handler had ended with ok before")
                }
            };
            let origin = index.records[answer.record].origin;
            findings.violation(
                Rule::NoEffect,
                &name,
                text,
                origin.into_iter().chain([answer.event]),
            );
        }
    }
    for run in &index.runs {
        let Some(origin) = index.records[run.record].origin else { continue };
        let event = |event: usize| &index.history.events[event].event;
        if let (Event::Sent(sent), Event::Begin(begin)) = (event(origin), event(run.begin))
            && let (Some(of_record), Some(of_run)) = (&sent.key, &begin.key)
            && of_record != of_run
        {
            let name = index.record_name(run.record);
            let text =
                || format!("a run of {name} has the key {of_run}, and the record {of_record}");
            findings.violation(Rule::Key, &name, text, [origin, run.begin]);
        }
    }
}
