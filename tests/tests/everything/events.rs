//! What the processes of a group have logged.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

/// How many kinds of events are shown.
const SHOWN: usize = 12;

/// The events at WARN and ERROR by level and message, and how often each was logged.
pub(crate) struct Events(BTreeMap<String, usize>);

impl Events {
    /// Reads the logs in the folder of a history.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut events = BTreeMap::new();
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        for path in files.filter(|path| path.extension().is_none()) {
            let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
            for event in text.lines().filter_map(parse) {
                *events.entry(event).or_default() += 1;
            }
        }
        Self(events)
    }
}

/// Parses a line such as `2026-01-02T03:04:05.678901Z  WARN campanile: lost 3 records partition=4` into its
/// level and its message, without digits and fields.
fn parse(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(' ')?;
    let (level, rest) = rest.trim_start().split_once(' ')?;
    let (_, message) = rest.rsplit_once("campanile: ").or_else(|| rest.split_once(": "))?;
    let words = message.split(' ').take_while(|word| !word.contains('='));
    let words: Vec<_> =
        words.filter(|word| !word.contains(|it: char| it.is_ascii_digit())).collect();
    let message = words.join(" ");
    ["WARN", "ERROR"].contains(&level).then(|| format!("{level} {message}"))
}

/// Lists the most frequent events, one on a line.
impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events: Vec<_> = self.0.iter().collect();
        // Errors first.
        events
            .sort_by_key(|(event, count)| (event.starts_with("WARN"), std::cmp::Reverse(**count)));
        for (event, count) in events.iter().take(SHOWN) {
            writeln!(f, "  {count} {event}")?;
        }
        let more = events.len().saturating_sub(SHOWN);
        if more > 0 { writeln!(f, "  and {more} other kinds") } else { Ok(()) }
    }
}
