//! Reads the lines of a history (Files, Header, Events, Faults).

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::Value;

use super::line::Line;

/// Times and durations, wide enough for each sum of them.
pub(super) type Time = i128;

/// A file and a line in it.
pub(crate) type Place = (String, usize);

#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) order: String,
    pub(super) lock_ttl: Time,
    pub(super) max_hold: Option<Time>,
    pub(super) tolerance: Time,
    /// `store`, `broker` or nothing.
    pub(super) transactions: String,
    pub(super) events: usize,
    /// The time of the last event.
    pub(super) last: Time,
    /// The first one of each record.
    pub(super) sent: Vec<Sent>,
    pub(super) runs: Vec<Run>,
    pub(super) answers: Vec<Answer>,
    pub(super) copies: Vec<Published>,
    pub(super) dead_letters: Vec<Published>,
    pub(super) skipped: Vec<(Time, Record)>,
    pub(super) commits: Vec<(Time, Partition, Time)>,
    pub(super) resets: Vec<(Time, Partition)>,
    /// Until which offset the records of a partition were deleted.
    pub(super) deleted: Vec<(Time, Partition, Time)>,
    pub(super) entries: Vec<Entry>,
    pub(super) visible: Vec<Visible>,
    pub(super) outputs: Vec<Published>,
    pub(super) reopened: Vec<(Time, String)>,
    pub(super) unlocked: Vec<(Time, String)>,
    pub(super) faults: Vec<Fault>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Partition {
    pub(super) topic: String,
    pub(super) number: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Record {
    pub(super) partition: Partition,
    pub(super) offset: i64,
}

#[derive(Debug)]
pub(super) struct Sent {
    pub(super) at: Time,
    pub(super) record: Record,
    pub(super) key: Option<String>,
    pub(super) order: Option<String>,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) process: String,
    pub(super) number: u64,
    pub(super) place: Place,
    /// The position of the line of its begin among all lines.
    pub(super) line: usize,
    pub(super) record: Record,
    pub(super) key: Option<String>,
    pub(super) token: Option<u64>,
    pub(super) attempt: Option<u64>,
    pub(super) begin: Time,
    pub(super) effect: bool,
    pub(super) end: Option<End>,
}

#[derive(Debug)]
pub(super) struct End {
    /// The position of its line among all lines.
    pub(super) line: usize,
    pub(super) at: Time,
    pub(super) how: String,
    pub(super) lost: bool,
}

#[derive(Debug)]
pub(super) struct Answer {
    /// The position of its line among all lines.
    pub(super) line: usize,
    pub(super) process: String,
    pub(super) at: Time,
    pub(super) record: Record,
    pub(super) outcome: String,
}

#[derive(Debug)]
pub(super) struct Published {
    pub(super) at: Time,
    pub(super) record: Record,
    pub(super) to: Record,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// When it was read, at the earliest and at the latest.
    pub(super) since: Time,
    pub(super) at: Time,
    pub(super) key: String,
    pub(super) state: String,
    pub(super) token: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Visible {
    pub(super) at: Time,
    pub(super) process: String,
    pub(super) run: u64,
}

#[derive(Debug)]
pub(super) struct Fault {
    pub(super) fault: String,
    pub(super) at: Time,
    /// If it is missing, the end depends on the fault.
    pub(super) until: Option<Time>,
    pub(super) process: Option<String>,
    pub(super) by: Time,
    pub(super) peer: String,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}

/// Reads files, given by their names and contents, in their order.
pub(super) fn read(files: &[(&str, &str)]) -> Result<History, String> {
    let mut history = History::default();
    let mut clock = None;
    let mut settings: Option<[Value; 5]> = None;
    let mut processes = HashSet::new();
    let mut lines = 0;
    for (name, text) in files {
        // What follows the last line feed is incomplete.
        let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut process: Option<String> = None;
        let mut runs = HashMap::new();
        for (index, text) in complete.split_terminator('\n').enumerate() {
            let place = ((*name).to_owned(), index + 1);
            let line = serde_json::from_str(text).map(Line);
            let line = line.map_err(|error| format!("{place:?}: {error}"))?;
            lines += 1;
            let result = (|| {
                if line.text("event")? == "history" {
                    line.check_header()?;
                    let of_line = line.text("clock")?;
                    if *clock.get_or_insert_with(|| of_line.clone()) != of_line {
                        return Err("another clock".to_owned());
                    }
                    if let Some(of_line) = line.settings()?
                        && *settings.get_or_insert_with(|| of_line.clone()) != of_line
                    {
                        return Err("other settings".to_owned());
                    }
                    let of_line = line.text("process")?;
                    if !processes.insert(of_line.clone()) {
                        return Err("two processes with the same name".to_owned());
                    }
                    process = Some(of_line);
                    runs.clear();
                    return Ok(());
                }
                let process = process.as_ref().ok_or("no header")?;
                history.add(&line, process, &place, lines, &mut runs)
            })();
            result.map_err(|problem| format!("{place:?}: {problem}"))?;
        }
    }
    let mut records = HashSet::new();
    history.sent.retain(|sent| records.insert(sent.record.clone()));
    let [order, lock_ttl, max_hold, tolerance, transactions] = settings.ok_or("no settings")?;
    history.order = order.as_str().expect("checked").to_owned();
    history.lock_ttl = lock_ttl.as_u64().expect("checked").into();
    history.max_hold = max_hold.as_u64().map(Time::from);
    history.tolerance = tolerance.as_u64().expect("checked").into();
    history.transactions = transactions.as_str().unwrap_or_default().to_owned();
    let begun: HashSet<_> = history.runs.iter().map(|run| (&run.process, run.number)).collect();
    if let Some(visible) = history.visible.iter().find(|it| !begun.contains(&(&it.process, it.run)))
    {
        return Err(format!("the run did not begin: {visible:?}"));
    }
    Ok(history)
}

impl History {
    /// Adds the event of a line. `runs` are the process's runs that have not ended, as positions in
    /// `self.runs`, and `None` for those that have.
    fn add(
        &mut self,
        line: &Line,
        process: &str,
        place: &Place,
        position: usize,
        runs: &mut HashMap<u64, Option<usize>>,
    ) -> Result<(), String> {
        let at = Time::from(line.number("at")?);
        self.events += 1;
        self.last = self.last.max(at);
        let mut running = |end: bool| {
            let run = runs.get_mut(&line.number("run")?).ok_or("the run did not begin")?;
            let index = run.ok_or("the run has ended")?;
            if end {
                *run = None;
            }
            Ok::<_, String>(index)
        };
        match &*line.text("event")? {
            "sent" => self.sent.push(Sent {
                at,
                record: line.record("record")?,
                key: line.maybe_text("key")?,
                order: line.maybe_text("order")?,
            }),
            "begin" => {
                let number = line.number("run")?;
                if runs.insert(number, Some(self.runs.len())).is_some() {
                    return Err("the run began before".to_owned());
                }
                self.runs.push(Run {
                    process: process.to_owned(),
                    number,
                    place: place.clone(),
                    line: position,
                    record: line.record("record")?,
                    key: line.maybe_text("key")?,
                    token: line.maybe_number("token")?,
                    attempt: line.attempt()?,
                    begin: at,
                    effect: false,
                    end: None,
                });
            }
            "effect" => {
                let run = running(false)?;
                self.runs[run].effect = true;
            }
            "end" => {
                let run = running(true)?;
                self.runs[run].end = Some(End {
                    line: position,
                    at,
                    how: line.one_of("how", &["ok", "error", "dropped"])?,
                    lost: line.maybe_text("lost")?.is_some(),
                });
            }
            "answer" => {
                let outcomes =
                    ["processed", "duplicate", "given_up", "unguarded", "error", "dropped"];
                line.maybe_text("error")?;
                self.answers.push(Answer {
                    line: position,
                    process: process.to_owned(),
                    at,
                    record: line.record("record")?,
                    outcome: line.one_of("outcome", &outcomes)?,
                });
            }
            kind @ ("dead_letter" | "copy" | "output") => {
                let (record, to) = (line.record("record")?, line.record("to")?);
                let events = match kind {
                    "copy" => &mut self.copies,
                    "output" => &mut self.outputs,
                    _ => &mut self.dead_letters,
                };
                events.push(Published { at, record, to });
            }
            "skipped" => self.skipped.push((at, line.record("record")?)),
            "commit" => {
                let offset = line.integer("offset")?;
                self.commits.push((at, line.partition("partition")?, offset.into()));
            }
            "reset" => {
                line.integer("offset")?;
                self.resets.push((at, line.partition("partition")?));
            }
            "deleted" => {
                let offset = line.integer("offset")?;
                self.deleted.push((at, line.partition("partition")?, offset.into()));
            }
            "entry" => {
                let states = ["absent", "processing", "retrying", "completed", "failed"];
                line.attempt()?;
                let since = line.maybe_number("since")?.map_or(at, Time::from);
                self.entries.push(Entry {
                    since: since.min(at),
                    at,
                    key: line.text("key")?,
                    state: line.one_of("state", &states)?,
                    token: line.maybe_number("token")?,
                });
            }
            "visible" => self.visible.push(Visible {
                at,
                process: line.text("process")?,
                run: line.number("run")?,
            }),
            "reopened" => self.reopened.push((at, line.text("key")?)),
            "unlocked" => self.unlocked.push((at, line.text("key")?)),
            "fault" => self.add_fault(line, at)?,
            other => return Err(format!("unknown event {other}")),
        }
        Ok(())
    }

    fn add_fault(&mut self, line: &Line, at: Time) -> Result<(), String> {
        let mut fault = Fault {
            fault: line.text("fault")?,
            at,
            until: line.maybe_number("until")?.map(Time::from),
            process: None,
            by: 0,
            peer: String::new(),
        };
        match &*fault.fault {
            "killed" | "suspended" => fault.process = Some(line.text("process")?),
            "store_unavailable"
            | "store_lost_writes"
            | "store_evicted"
            | "store_sessions_ended"
            | "broker_killed"
            | "topic_recreated" => {}
            "clock_stepped" => fault.by = line.integer("by")?.into(),
            "network_cut" => {
                fault.process = line.maybe_text("process")?;
                fault.peer = line.one_of("peer", &["store", "broker"])?;
            }
            other => return Err(format!("unknown fault {other}")),
        }
        self.faults.push(fault);
        Ok(())
    }
}
