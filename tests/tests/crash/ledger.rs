//! The workers' ledgers.

use std::fs;

use tempfile::TempDir;

use crate::worker;

pub(crate) struct Ledger(Vec<Line>);

enum Line {
    Run(Run),
    Answer(u32, Answer),
}

/// A handler that finished.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) pid: u32,
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) start: u128,
    pub(crate) end: u128,
}

/// The layer's answer, with the key of a processed record.
pub(crate) enum Answer {
    Processed(String),
    Duplicate,
}

impl Ledger {
    /// Reads the ledgers of all workers. Runs are in the order in which they ended.
    pub(crate) fn read(folder: &TempDir) -> Self {
        let mut lines = Vec::new();
        let files = fs::read_dir(worker::ledger_folder(folder)).into_iter().flatten();
        for file in files.map(Result::unwrap) {
            let pid = file.file_name().to_str().unwrap().parse().unwrap();
            let text = fs::read_to_string(file.path()).unwrap();
            // The last line may be incomplete.
            let complete_lines = text.rfind('\n').map_or("", |end| &text[..end]);
            lines.extend(complete_lines.lines().filter_map(|line| Line::parse(pid, line)));
        }
        lines.sort_by_key(|line| match line {
            Line::Run(run) => run.end,
            Line::Answer(..) => u128::MAX,
        });
        Self(lines)
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.0.iter().filter_map(|line| match line {
            Line::Run(run) => Some(run),
            Line::Answer(..) => None,
        })
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = (u32, &Answer)> {
        self.0.iter().filter_map(|line| match line {
            Line::Answer(pid, answer) => Some((*pid, answer)),
            Line::Run(_) => None,
        })
    }
}

impl Line {
    /// Parses a line, unless it is about a handler that has not finished.
    fn parse(pid: u32, line: &str) -> Option<Self> {
        Some(match *line.split(' ').collect::<Vec<_>>() {
            ["begin" | "dropped", ..] => return None,
            ["run", key, token, attempt, start, end] => Self::Run(Run {
                pid,
                key: key.into(),
                token: token.parse().unwrap(),
                attempt: attempt.parse().unwrap(),
                start: start.parse().unwrap(),
                end: end.parse().unwrap(),
            }),
            ["PROCESSED", _, key, _] => Self::Answer(pid, Answer::Processed(key.into())),
            ["DUPLICATE", _, _, _] => Self::Answer(pid, Answer::Duplicate),
            _ => panic!("invalid ledger line: {line}"),
        })
    }
}
