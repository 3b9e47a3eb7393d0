//! Changes of a simulated history, each of which violates a rule.

use std::collections::HashMap;

use campanile_history::{
    Answer, Begin, Cause, Coordinates, End, Entry, Event, Fault, FaultKind, How, Outcome, Position,
    Published, Rerun, Rule, Visible,
};

use crate::agreement::judge_recorded;
use crate::simulator::{LOCK_TTL, Recorded};

/// An event that is changed, so that the rule is violated. `None` if the history has no such event.
pub(crate) type Mutation = fn(&mut Recorded) -> Option<Rule>;

pub(crate) const MUTATIONS: &[(&str, Mutation)] = &[
    ("answers of a record removed", |recorded| {
        let record = find(recorded, |event| match event {
            Event::Answer(answer) if is_processed(answer) => Some(answer.record.clone()),
            _ => None,
        })?;
        let is_other = |event: &Event| !matches!(event, Event::Answer(a) if a.record == record);
        recorded.values_mut().for_each(|events| events.retain(is_other));
        Some(Rule::Lost)
    }),
    ("success of a processed run becomes an error", |recorded| {
        let (process, run, _) = processed_run(recorded)?;
        end_of(recorded, &process, run)?.how = How::Error;
        Some(Rule::NoEffect)
    }),
    ("processed run repeated", |recorded| {
        let (process, _, begin) = processed_run(recorded)?;
        let (run, at) = (u64::MAX, last_time(recorded));
        let (token, attempt) = (Some(u64::MAX), Some(2));
        let record = begin.record.clone();
        let events = recorded.get_mut(&process)?;
        events.push(Event::Begin(Begin { at, run, token, attempt, ..begin }));
        events.push(Event::End(End { at, run, how: How::Ok, lost: None }));
        let (outcome, error) = (Outcome::Processed, None);
        events.push(Event::Answer(Answer { at, record, outcome, error }));
        Some(Rule::Unexplained)
    }),
    ("kill removed", |recorded| {
        // Not every kill hits a run, so all of them are removed. Another fault may be a cause as well.
        let is_kill = |event: &Event| matches!(event, Event::Fault(fault) if matches!(fault.kind, FaultKind::Killed { .. }));
        let is_explained = |rerun: &Rerun| {
            recorded.values().flatten().any(|event| {
                let Event::Fault(fault) = event else { return false };
                let may_explain = match &fault.kind {
                    FaultKind::Killed { .. } | FaultKind::BrokerKilled => false,
                    FaultKind::Suspended { process } => *process == rerun.first.process,
                    _ => true,
                };
                may_explain && fault.at <= rerun.again.at && fault.until >= Some(rerun.first.at)
            })
        };
        let has_killed_run = judge_recorded(recorded).reruns.iter().any(|rerun| {
            matches!(rerun.cause, Cause::KilledBeforeEffect | Cause::KilledAfterEffect)
                && !is_explained(rerun)
        });
        recorded.values_mut().for_each(|events| events.retain(|event| !is_kill(event)));
        has_killed_run.then_some(Rule::Unexplained)
    }),
    ("end after the next begin", |recorded| {
        let (process, run, _, next) = pair(recorded, |end| end.how == How::Error)?;
        end_of(recorded, &process, run)?.at = next.at + 1;
        Some(Rule::Overlap)
    }),
    ("begin before the record before it is finished", |recorded| {
        let (process, run, begin) = processed_run(recorded)?;
        let mut before = begin.record;
        before.offset -= 1;
        // It may be answered again as a duplicate.
        let finished = recorded.values().flatten().filter_map(|event| match event {
            Event::Answer(a) if a.record == before && a.outcome.is_finished() => Some(a.at),
            _ => None,
        });
        let finished = finished.min()?;
        let begins = recorded.get_mut(&process)?.iter_mut().find_map(|event| match event {
            Event::Begin(begin) if begin.run == run => Some(begin),
            _ => None,
        });
        begins?.at = finished - 1;
        Some(Rule::Order)
    }),
    ("commit past the next record", |recorded| {
        let is_finished_at = |commit: &Position| {
            recorded.values().flatten().any(|event| {
                let Event::Answer(answer) = event else { return false };
                let Coordinates { partition, offset } = &answer.record;
                (partition, *offset) == (&commit.partition, commit.offset)
                    && answer.outcome.is_finished()
                    && answer.at <= commit.at
            })
        };
        // The next record may be finished already, before it is committed.
        let unfinished = recorded.get("broker")?.iter().position(|event| match event {
            Event::Commit(commit) => !is_finished_at(commit),
            _ => false,
        })?;
        let Event::Commit(commit) = &mut recorded.get_mut("broker")?[unfinished] else {
            return None;
        };
        commit.offset += 1;
        Some(Rule::CommitPastUnfinished)
    }),
    ("commit lowered", |recorded| {
        let commits = recorded.get_mut("broker")?;
        let Event::Commit(last) = commits.last()?.clone() else { return None };
        commits.push(Event::Commit(Position { offset: last.offset - 1, ..last }));
        Some(Rule::CommitLowered)
    }),
    ("effect removed", |recorded| {
        let (process, run, _) = processed_run(recorded)?;
        let events = recorded.get_mut("test")?;
        let count = events.len();
        events.retain(
            |event| !matches!(event, Event::Visible(it) if it.process == process && it.run == run),
        );
        (events.len() < count).then_some(Rule::NoEffect)
    }),
    ("effect repeated", |recorded| {
        let events = recorded.get_mut("test")?;
        let effect = events.iter().find(|event| matches!(event, Event::Visible(_)))?.clone();
        events.push(effect);
        Some(Rule::Effect)
    }),
    ("effect of a run that was rolled back", |recorded| {
        let reruns = judge_recorded(recorded).reruns;
        let rerun = reruns.into_iter().find(|rerun| rerun.cause == Cause::RolledBack)?;
        let (at, process) = (last_time(recorded), rerun.first.process);
        // The first line is the header, and has the number 1.
        let Event::Begin(first) = &recorded[&process][rerun.first.line - 2] else { return None };
        let run = first.run;
        recorded.get_mut("test")?.push(Event::Visible(Visible { at, process, run }));
        Some(Rule::Effect)
    }),
    ("output repeated", |recorded| {
        let mut output = outputs(recorded).next()?.clone();
        output.to.offset += 1_000_000;
        recorded.get_mut("test")?.push(Event::Output(output));
        Some(Rule::Effect)
    }),
    ("output removed", |recorded| {
        let removed = outputs(recorded).next()?.clone();
        let is_other = |event: &Event| !matches!(event, Event::Output(it) if *it == removed);
        recorded.get_mut("test")?.retain(is_other);
        Some(Rule::OutputMissing)
    }),
    ("commits of a partition removed", |recorded| {
        let partition = outputs(recorded).next()?.record.partition.clone();
        let is_other =
            |event: &Event| !matches!(event, Event::Commit(it) if it.partition == partition);
        recorded.get_mut("broker")?.retain(is_other);
        Some(Rule::OutputUncommitted)
    }),
    ("outputs exchanged", |recorded| {
        let first = outputs(recorded).next()?.clone();
        let second = outputs(recorded).find(|it| is_behind(it, &first))?.clone();
        for event in recorded.get_mut("test")? {
            match event {
                Event::Output(output) if *output == first => output.to = second.to.clone(),
                Event::Output(output) if *output == second => output.to = first.to.clone(),
                _ => {}
            }
        }
        Some(Rule::Order)
    }),
    ("token repeated", |recorded| {
        let (_, _, first, next) = pair(recorded, |end| end.how == How::Error)?;
        begin_of(recorded, &next)?.token = first.token;
        Some(Rule::Token)
    }),
    ("attempts added", |recorded| {
        let (_, _, begin) = processed_run(recorded)?;
        begin_of(recorded, &begin)?.attempt = Some(10_000);
        Some(Rule::AttemptWithoutRun)
    }),
    ("attempt of a killed process not counted", |recorded| {
        let kills: Vec<(String, u64)> = find_all(recorded, |event| match event {
            Event::Fault(fault) => match &fault.kind {
                FaultKind::Killed { process } => Some((process.clone(), fault.at)),
                _ => None,
            },
            _ => None,
        });
        let runs = runs_by_key(recorded);
        let pair = runs.values().flat_map(|runs| runs.windows(2)).find(|pair| {
            let ((process, run, _), (_, _, next)) = (&pair[0], &pair[1]);
            let is_killed =
                |(name, at): &(String, u64)| name == process && !was_suspended(recorded, *at);
            let killed = kills.iter().any(|kill| kill.1 <= next.at && is_killed(kill));
            killed && end_of(&mut recorded.clone(), process, *run).is_none()
        })?;
        let (first, next) = (pair[0].2.clone(), pair[1].2.clone());
        begin_of(recorded, &next)?.attempt = first.attempt;
        Some(Rule::AttemptNotCounted)
    }),
    ("entry of another grant", |recorded| {
        let entries = recorded.get_mut("test")?.iter_mut();
        let entry: &mut Entry = entries.rev().find_map(|event| match event {
            Event::Entry(entry) => Some(entry),
            _ => None,
        })?;
        entry.token = entry.token.map(|token| token + 1_000_000);
        Some(Rule::Entry)
    }),
];

fn outputs(recorded: &Recorded) -> impl Iterator<Item = &Published> {
    recorded.values().flatten().filter_map(|event| match event {
        Event::Output(output) => Some(output),
        _ => None,
    })
}

/// Checks whether an output is that of a later record of the same partition.
fn is_behind(output: &Published, first: &Published) -> bool {
    let (record, before) = (&output.record, &first.record);
    record.partition == before.partition && record.offset > before.offset
}

fn is_processed(answer: &Answer) -> bool {
    answer.outcome == Outcome::Processed
}

/// Collects from the events of all processes.
fn find_all<T>(recorded: &Recorded, find: impl Fn(&Event) -> Option<T>) -> Vec<T> {
    recorded.values().flatten().filter_map(find).collect()
}

fn find<T>(recorded: &Recorded, find: impl Fn(&Event) -> Option<T>) -> Option<T> {
    recorded.values().flatten().find_map(find)
}

fn last_time(recorded: &Recorded) -> u64 {
    recorded.values().flatten().map(Event::at).max().unwrap()
}

/// The runs of each key in the order of their begins, each with its process and number.
fn runs_by_key(recorded: &Recorded) -> HashMap<String, Vec<(String, u64, Begin)>> {
    let mut runs: HashMap<_, Vec<_>> = HashMap::new();
    for (process, events) in recorded {
        for event in events {
            if let Event::Begin(begin) = event {
                let run = (process.clone(), begin.run, begin.clone());
                runs.entry(begin.key.clone().unwrap()).or_default().push(run);
            }
        }
    }
    runs.values_mut().for_each(|runs| runs.sort_by_key(|(.., begin)| begin.at));
    runs
}

/// Finds the run of a key with a single run, which was processed. Not that of the first record.
fn processed_run(recorded: &Recorded) -> Option<(String, u64, Begin)> {
    let processed = find_all(recorded, |event| match event {
        Event::Answer(answer) if is_processed(answer) => Some(answer.record.clone()),
        _ => None,
    });
    let of_record = |begin: &Begin| begin.record.offset > 0 && processed.contains(&begin.record);
    let runs = runs_by_key(recorded).into_values();
    runs.filter(|runs| runs.len() == 1 && of_record(&runs[0].2)).map(|runs| runs[0].clone()).next()
}

/// Finds two runs of a key under different locks, the first with such an end, and the second so soon
/// that no lock may have expired in between.
fn pair(recorded: &Recorded, is_end: impl Fn(&End) -> bool) -> Option<(String, u64, Begin, Begin)> {
    let mut recorded = recorded.clone();
    let runs = runs_by_key(&recorded);
    runs.values().flat_map(|runs| runs.windows(2)).find_map(|pair| {
        let ((process, run, first), (_, _, next)) = (&pair[0], &pair[1]);
        let is_soon = next.at - first.at < LOCK_TTL / 2 && !was_suspended(&recorded, next.at);
        let end = end_of(&mut recorded, process, *run)?;
        (is_end(end) && first.token != next.token && is_soon)
            .then(|| (process.clone(), *run, first.clone(), next.clone()))
    })
}

/// Checks whether a process was suspended shortly before this time, so that a lock may have expired.
fn was_suspended(recorded: &Recorded, before: u64) -> bool {
    let suspended = find_all(recorded, |event| match event {
        Event::Fault(Fault { at, until, kind: FaultKind::Suspended { .. } }) => {
            Some((*at, until.unwrap_or(u64::MAX)))
        }
        _ => None,
    });
    let is_recent = |until| until >= before.saturating_sub(LOCK_TTL);
    suspended.into_iter().any(|(at, until)| at <= before && is_recent(until))
}

fn end_of<'a>(recorded: &'a mut Recorded, process: &str, run: u64) -> Option<&'a mut End> {
    recorded.get_mut(process)?.iter_mut().find_map(|event| match event {
        Event::End(end) if end.run == run => Some(end),
        _ => None,
    })
}

fn begin_of<'a>(recorded: &'a mut Recorded, begin: &Begin) -> Option<&'a mut Begin> {
    recorded.values_mut().flatten().find_map(|event| match event {
        Event::Begin(found) if found == begin => Some(found),
        _ => None,
    })
}
