//! What the processes of a test have recorded so far.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use campanile::store::Entry;
use campanile_test::history::{Begin, Coordinates, Event, How, Outcome};

/// The runs and answers of all processes, read while they are written. The judge reads the whole
/// history again at the end.
#[derive(Default)]
pub(crate) struct Progress {
    /// How much of each file was read, in bytes.
    offsets: HashMap<PathBuf, u64>,
    runs: Vec<Run>,
    /// Finds a run by its process and its number there.
    numbers: HashMap<(String, u64), usize>,
    /// The last run of each record in each process.
    last_runs: HashMap<(String, Coordinates), usize>,
    /// When each record was answered first, other than with an error.
    answered: HashMap<Coordinates, u64>,
}

/// A handler that has started.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) process: String,
    pub(crate) begin: Begin,
    pub(crate) has_effect: bool,
    pub(crate) end: Option<How>,
    pub(crate) is_answered: bool,
}

impl Progress {
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn runs_of(&self, process: &str) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.process == process)
    }

    /// Checks whether a record was answered, other than with an error.
    pub(crate) fn is_answered(&self, record: &Coordinates) -> bool {
        self.answered.contains_key(record)
    }

    /// Counts the records that were answered, other than with an error.
    pub(crate) fn answered(&self) -> usize {
        self.answered.len()
    }

    /// The longest time in which no record was answered.
    pub(crate) fn longest_stall(&self) -> Duration {
        let mut times: Vec<u64> = self.answered.values().copied().collect();
        times.sort_unstable();
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
        Duration::from_micros(longest.unwrap_or_default())
    }

    /// Reads the lines that were added to the files of this folder.
    pub(crate) fn read(&mut self, folder: &Path) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_none_or(|extension| extension != "jsonl") {
                continue;
            }
            let process = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let mut file = File::open(&path).unwrap();
            let offset = self.offsets.entry(path).or_default();
            file.seek(SeekFrom::Start(*offset)).unwrap();
            let mut text = Vec::new();
            file.read_to_end(&mut text).unwrap();
            // The last line may be incomplete.
            let complete = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let is_start = *offset == 0;
            *offset += complete as u64;
            let lines = text[..complete].split_inclusive(|byte| *byte == b'\n');
            // The first line is the header.
            for line in lines.skip(usize::from(is_start)) {
                self.add(&process, serde_json::from_slice(line).unwrap());
            }
        }
    }

    fn add(&mut self, process: &str, event: Event) {
        match event {
            Event::Begin(begin) => {
                let index = self.runs.len();
                self.numbers.insert((process.to_owned(), begin.run), index);
                self.last_runs.insert((process.to_owned(), begin.record.clone()), index);
                let process = process.to_owned();
                let (has_effect, end, is_answered) = (false, None, false);
                self.runs.push(Run { process, begin, has_effect, end, is_answered });
            }
            Event::Effect(effect) => self.run(process, effect.run).has_effect = true,
            Event::End(end) => self.run(process, end.run).end = Some(end.how),
            Event::Answer(answer) if answer.outcome != Outcome::Dropped => {
                let last = self.last_runs.get(&(process.to_owned(), answer.record.clone()));
                if let Some(&last) = last {
                    self.runs[last].is_answered = true;
                }
                if answer.outcome.is_finished() {
                    self.answered.entry(answer.record).or_insert(answer.at);
                }
            }
            _ => {}
        }
    }

    fn run(&mut self, process: &str, number: u64) -> &mut Run {
        &mut self.runs[self.numbers[&(process.to_owned(), number)]]
    }
}

impl Run {
    pub(crate) fn key(&self) -> &str {
        self.begin.key.as_deref().expect("the handler has a lock")
    }

    /// Checks whether the entry has the token of this run.
    pub(crate) fn has_token(&self, entry: &Entry) -> bool {
        self.begin.token == Some(entry.token().get())
    }
}
