//! The workers' ledgers.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// What the handlers of all workers did and what their layers answered. Times are in microseconds
/// since boot.
#[derive(Default)]
pub(crate) struct History {
    /// The runs of each key, in the order of their tokens.
    pub(crate) runs: BTreeMap<String, Vec<Run>>,
    /// The time of each record's first answer, by partition and offset.
    pub(crate) answered: BTreeMap<i32, BTreeMap<i64, u64>>,
}

/// A handler that started.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) pid: u32,
    pub(crate) token: u64,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) record_key: String,
    pub(crate) started: u64,
    /// When the handler had its effect.
    pub(crate) effect: Option<u64>,
    pub(crate) end: RunEnd,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// The ledger has no line about the end.
    Unknown,
    /// The layer answered at this time that the record was processed.
    Processed(u64),
    /// The handler was dropped at this time.
    Dropped(u64),
}

/// Parses the ledger of one process.
struct LedgerReader<'a> {
    pid: u32,
    runs: Vec<(String, Run)>,
    /// The last run of each record.
    last_run: HashMap<&'a str, usize>,
    answers: Vec<(i32, i64, u64)>,
}

impl History {
    /// Reads the ledgers of all processes in this folder.
    pub(crate) fn read(ledgers: &Path) -> Self {
        let mut history = Self::default();
        for file in fs::read_dir(ledgers).into_iter().flatten().map(Result::unwrap) {
            let pid = file.file_name().to_str().unwrap().parse().unwrap();
            history.add_ledger(pid, &fs::read_to_string(file.path()).unwrap());
        }
        history.runs.values_mut().for_each(|runs| runs.sort_by_key(|run| run.token));
        history
    }

    /// Reads the ledger of one process.
    pub(crate) fn read_process(ledgers: &Path, pid: u32) -> Self {
        let mut history = Self::default();
        if let Ok(text) = fs::read_to_string(ledgers.join(pid.to_string())) {
            history.add_ledger(pid, &text);
        }
        history
    }

    /// The longest time without an answer.
    pub(crate) fn longest_stall(&self) -> Duration {
        let mut answers: Vec<u64> =
            self.answered.values().flat_map(|of| of.values().copied()).collect();
        answers.sort_unstable();
        let stalls = answers.windows(2).map(|pair| pair[1] - pair[0]);
        Duration::from_micros(stalls.max().unwrap_or_default())
    }

    fn add_ledger(&mut self, pid: u32, text: &str) {
        // The last line may be incomplete.
        let complete_lines = text.rfind('\n').map_or("", |end| &text[..end]);
        let (runs, last_run, answers) = (Vec::new(), HashMap::new(), Vec::new());
        let mut reader = LedgerReader { pid, runs, last_run, answers };
        complete_lines.lines().for_each(|line| reader.parse_line(line));
        for (key, run) in reader.runs {
            self.runs.entry(key).or_default().push(run);
        }
        for (partition, offset, at) in reader.answers {
            let first = self.answered.entry(partition).or_default().entry(offset).or_insert(at);
            *first = at.min(*first);
        }
    }
}

impl<'a> LedgerReader<'a> {
    fn parse_line(&mut self, line: &'a str) {
        match *line.split(' ').collect::<Vec<_>>() {
            ["begin", key, token, record, record_key, at] => {
                self.last_run.insert(record, self.runs.len());
                let (partition, offset) = parse_coordinates(record);
                let run = Run {
                    pid: self.pid,
                    token: token.parse().unwrap(),
                    partition,
                    offset,
                    record_key: record_key.into(),
                    started: at.parse().unwrap(),
                    effect: None,
                    end: RunEnd::Unknown,
                };
                self.runs.push((key.into(), run));
            }
            ["run", key, token, _, _, at] => {
                let token: u64 = token.parse().unwrap();
                let is_same_run = |run: &&mut (String, Run)| run.0 == key && run.1.token == token;
                self.runs
                    .iter_mut()
                    .rev()
                    .find(is_same_run)
                    .expect("the run has started")
                    .1
                    .effect = Some(at.parse().unwrap());
            }
            ["dropped", record, at] => {
                self.run(record).expect("the run has started").end =
                    RunEnd::Dropped(at.parse().unwrap());
            }
            [answer @ ("PROCESSED" | "DUPLICATE" | "GIVEN_UP"), record, _, at] => {
                let at = at.parse().unwrap();
                if answer == "PROCESSED" {
                    self.run(record).expect("the run has started").end = RunEnd::Processed(at);
                }
                let (partition, offset) = parse_coordinates(record);
                self.answers.push((partition, offset, at));
            }
            _ => panic!("invalid ledger line: {line}"),
        }
    }

    fn run(&mut self, record: &str) -> Option<&mut Run> {
        Some(&mut self.runs[*self.last_run.get(record)?].1)
    }
}

/// Parses `TOPIC/PARTITION@OFFSET`.
fn parse_coordinates(record: &str) -> (i32, i64) {
    let (_, position) = record.rsplit_once('/').unwrap();
    let (partition, offset) = position.split_once('@').unwrap();
    (partition.parse().unwrap(), offset.parse().unwrap())
}

impl Run {
    /// Finds when the run ended, if the ledger says so.
    pub(crate) fn ended_at(&self) -> Option<u64> {
        match self.end {
            RunEnd::Unknown => None,
            RunEnd::Processed(at) | RunEnd::Dropped(at) => Some(at),
        }
    }

    pub(crate) fn is_processed(&self) -> bool {
        matches!(self.end, RunEnd::Processed(_))
    }
}
