//! Reads histories.

use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

use serde::Deserialize;

use crate::{Event, Header, ReadError, Settings, VERSION, Visible};

/// The ending of the names of files that belong to a history.
pub(crate) const EXTENSION: &str = "jsonl";

/// A history: what all processes, the broker and the store did, and what was broken.
#[derive(Clone, Debug)]
pub struct History {
    pub(crate) settings: Settings,
    pub(crate) processes: Vec<Process>,
    /// The events of one process after another, in the order of their lines.
    pub(crate) events: Vec<Line>,
    /// The file and the number of each last line without an end.
    pub(crate) torn: Vec<(String, usize)>,
    /// The number of entries of the folder that are not read.
    pub(crate) other_files: usize,
}

/// A process and the file with its events.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) file: String,
}

/// An event and its place.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) process: usize,
    pub(crate) number: usize,
    pub(crate) event: Event,
}

/// The field that decides how a line is read.
#[derive(Deserialize)]
struct AnyLine {
    event: String,
}

/// The fields that decide how a header is read.
#[derive(Deserialize)]
struct AnyHeader {
    version: Option<serde_json::Value>,
    /// An object. What is derived for [`Settings`] would also read it from an array.
    #[serde(rename = "settings")]
    _settings: Option<serde_json::Map<String, serde_json::Value>>,
}

/// The name of a fault is a text. What is derived for [`Event`] would also read it from a number.
#[derive(Deserialize)]
struct AnyFault {
    #[serde(rename = "fault")]
    _fault: String,
}

/// Reads the files of a history one after another.
#[derive(Default)]
struct Reader {
    clock: Option<String>,
    settings: Option<Settings>,
    processes: Vec<Process>,
    names: HashMap<String, usize>,
    /// The runs of each process, and whether they have ended.
    runs: Vec<HashMap<u64, bool>>,
    events: Vec<Line>,
    torn: Vec<(String, usize)>,
    other_files: usize,
}

impl History {
    /// Reads a history from a file, or from all files of a folder whose names end in `.jsonl`.
    ///
    /// A last line without an end, as a killed process leaves it, is ignored.
    ///
    /// # Errors
    /// Fails if there are no files, if a file cannot be read, or if a line is not valid.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |error: io::Error| ReadError::new(&name, None, error);
        let mut files = Vec::new();
        let mut reader = Reader::default();
        if path.is_dir() {
            for entry in fs::read_dir(path).map_err(failed)? {
                let file = entry.map_err(failed)?.path();
                // A pipe without a writer would be read for ever.
                if file.extension().is_some_and(|it| it == EXTENSION) && !is_pipe(&file) {
                    files.push(file);
                } else {
                    reader.other_files += 1;
                }
            }
            files.sort();
        } else {
            files.push(path.to_owned());
        }
        for file in files {
            let relative = file.strip_prefix(path).unwrap_or(&file);
            let relative = if relative.as_os_str().is_empty() { &file } else { relative };
            let name = relative.display().to_string();
            // Not text: a killed process can leave a part of a character.
            let bytes = fs::read(&file).map_err(|error| ReadError::new(&name, None, error))?;
            reader.read_file(&name, &bytes)?;
        }
        reader.finish(&name)
    }

    /// Reads a history from named texts, each the contents of a file.
    ///
    /// # Errors
    /// Fails if there are no texts, or if a line is not valid.
    pub fn parse<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ReadError> {
        let mut reader = Reader::default();
        for (name, text) in files {
            reader.read_file(name, text.as_bytes())?;
        }
        reader.finish("history")
    }

    /// Returns the settings of the consumers.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the events of one process after another, each with the name of its process.
    pub fn events(&self) -> impl Iterator<Item = (&str, &Event)> {
        self.events.iter().map(|line| (&*self.processes[line.process].name, &line.event))
    }

    /// Returns the number of last lines without an end.
    pub fn torn_lines(&self) -> usize {
        self.torn.len()
    }
}

impl Reader {
    fn read_file(&mut self, file: &str, bytes: &[u8]) -> Result<(), ReadError> {
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if complete < bytes.len() {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
            self.torn.push((file.to_owned(), lines + 1));
        }
        let mut has_header = false;
        for (index, line) in bytes[..complete].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let number = index + 1;
            let line = line.trim_ascii();
            let read = if !line.starts_with(b"{") {
                Err("the line is not a JSON object".to_owned())
            } else if is_header(line) {
                has_header = true;
                read_header(line).and_then(|header| self.add_process(file, header))
            } else if !has_header {
                Err("the first line must be a header: {\"event\":\"history\",\"version\":1, …}"
                    .to_owned())
            } else {
                read_event(line).and_then(|event| self.add_event(number, event))
            };
            read.map_err(|problem| ReadError::new(file, Some(number), problem))?;
        }
        Ok(())
    }

    fn add_event(&mut self, number: usize, event: Event) -> Result<(), String> {
        self.check_run(&event)?;
        let process = self.processes.len() - 1;
        self.events.push(Line { process, number, event });
        Ok(())
    }

    fn add_process(&mut self, file: &str, header: Header) -> Result<(), String> {
        let Header { process, clock, settings, .. } = header;
        let expected = self.clock.get_or_insert_with(|| clock.clone());
        if *expected != clock {
            return Err(format!(
                "the clock is {clock:?}, and that of the other processes {expected:?}; a history has \
                 one clock"
            ));
        }
        self.settings = self.settings.or(settings);
        if let (Some(settings), Some(expected)) = (settings, self.settings)
            && settings != expected
        {
            return Err(format!(
                "the settings are {}, and those of an earlier header {}; a history has the same in all \
                 headers that have them",
                to_json(&settings),
                to_json(&expected)
            ));
        }
        if self.names.insert(process.clone(), self.processes.len()).is_some() {
            return Err(format!("there are two processes {process:?}; give each its own name"));
        }
        self.processes.push(Process { name: process, file: file.into() });
        self.runs.push(HashMap::new());
        Ok(())
    }

    /// Checks that the events of a run are in order.
    fn check_run(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Begin(begin) => match self.current_runs().insert(begin.run, false) {
                Some(_) => Err(format!("run {} has begun before in this process", begin.run)),
                None => Ok(()),
            },
            Event::Effect(effect) => self.check_running(effect.run).map(|_| ()),
            Event::End(end) => self.check_running(end.run).map(|ended| *ended = true),
            _ => Ok(()),
        }
    }

    fn current_runs(&mut self) -> &mut HashMap<u64, bool> {
        self.runs.last_mut().expect("a process begins with its header")
    }

    fn check_running(&mut self, run: u64) -> Result<&mut bool, String> {
        let ended = self.current_runs().get_mut(&run).filter(|ended| !**ended);
        ended.ok_or_else(|| format!("run {run} is not running in this process"))
    }

    /// Checks that each visible effect is that of a run, also of a process that is read later.
    fn check_visible(&self) -> Result<(), ReadError> {
        for line in &self.events {
            let Event::Visible(Visible { process, run, .. }) = &line.event else { continue };
            let runs = self.names.get(process).map(|&process| &self.runs[process]);
            if !runs.is_some_and(|runs| runs.contains_key(run)) {
                let text = format!("run {run} has not begun in process {process:?}");
                let file = &self.processes[line.process].file;
                return Err(ReadError::new(file, Some(line.number), text));
            }
        }
        Ok(())
    }

    fn finish(self, name: &str) -> Result<History, ReadError> {
        let invalid = |text: &str| ReadError::new(name, None, text.to_owned());
        if self.processes.is_empty() {
            return Err(invalid(
                "there is no history: expected a file with a complete line, or a folder with \
                 such files whose names end in .jsonl",
            ));
        }
        let settings = self.settings.ok_or_else(|| {
            invalid("no header has settings; add them to the header of one of the processes")
        })?;
        self.check_visible()?;
        let Self { processes, events, torn, other_files, .. } = self;
        Ok(History { settings, processes, events, torn, other_files })
    }
}

/// Checks whether a path is neither a file nor a folder, such as a named pipe.
fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// Checks whether a line is meant as a header, of whatever version.
fn is_header(line: &[u8]) -> bool {
    // Most lines are not, and are parsed only once.
    let marker = b"\"history\"";
    let may_be = line.windows(marker.len()).any(|part| part == marker);
    may_be && serde_json::from_slice::<AnyLine>(line).is_ok_and(|any| any.event == "history")
}

fn read_event(line: &[u8]) -> Result<Event, String> {
    let event = read_json(line, "an event")?;
    if matches!(event, Event::Fault(_)) {
        read_json::<AnyFault>(line, "an event")?;
    }
    Ok(event)
}

fn read_header(line: &[u8]) -> Result<Header, String> {
    let any: AnyHeader = read_json(line, "a header")?;
    match any.version {
        Some(version) if version == VERSION => read_json(line, "a header"),
        Some(other) => {
            Err(format!("version {other} of the format; this reader reads version {VERSION}"))
        }
        None => Err("the header has no version".to_owned()),
    }
}

fn read_json<'a, T: Deserialize<'a>>(line: &'a [u8], what: &str) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|error| {
        // A line is read alone, so it is always the first one.
        let error = error.to_string().replace(" at line 1 column ", " at column ");
        format!("not {what} of version {VERSION} of the format: {error}")
    })
}

fn to_json(settings: &Settings) -> String {
    serde_json::to_string(settings).expect("settings have no maps")
}
