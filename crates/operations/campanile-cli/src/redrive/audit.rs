//! The audit: a line for each letter.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use campanile_admin::redrive::{LetterOutcome, LetterReport, RedriveObserver};
use campanile_core::{BoxError, ConfigError};
use indicatif::ProgressBar;

/// Writes the audit, and moves the progress.
pub(super) struct Audit {
    target: Target,
    progress: ProgressBar,
}

enum Target {
    /// A file. Letters that need attention are also printed, unless the summary is JSON.
    File { file: File, prints: bool },
    /// Standard output, as JSON.
    Json,
    /// Only letters that need attention are printed.
    Text,
}

impl Audit {
    pub(super) fn open(
        path: Option<&Path>,
        json: bool,
        progress: ProgressBar,
    ) -> Result<Self, ConfigError> {
        let target = match path {
            Some(path) => {
                let file = open(path).map_err(|error| {
                    ConfigError::new(format!("cannot write to {}: {error}", path.display()))
                })?;
                Target::File { file, prints: !json }
            }
            None if json => Target::Json,
            None => Target::Text,
        };
        Ok(Self { target, progress })
    }

    /// Prints the letters that need attention. If the reader is gone, the run continues: the lines are not
    /// the audit, and the exit code says that there are such letters.
    fn print_attention(&self, reports: &[LetterReport]) -> io::Result<()> {
        match self.print(&attention(reports)) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }

    fn print(&self, lines: &str) -> io::Result<()> {
        self.progress.suspend(|| {
            let mut stdout = io::stdout().lock();
            stdout.write_all(lines.as_bytes())?;
            stdout.flush()
        })
    }
}

impl RedriveObserver for Audit {
    fn remaining(&mut self, letters: u64) {
        self.progress.set_length(self.progress.position() + letters);
    }

    fn handled(&mut self, reports: &[LetterReport]) -> Result<(), BoxError> {
        self.progress.inc(reports.len() as u64);
        if reports.is_empty() {
            return Ok(());
        }
        match &mut self.target {
            Target::File { file, prints } => {
                // One write, so that a kill leaves whole lines.
                file.write_all(json_lines(reports)?.as_bytes())?;
                if *prints {
                    self.print_attention(reports)?;
                }
            }
            Target::Json => self.print(&json_lines(reports)?)?,
            Target::Text => self.print_attention(reports)?,
        }
        Ok(())
    }
}

/// Opens the file at its end. Ends a line that a kill has cut.
fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

fn json_lines(reports: &[LetterReport]) -> Result<String, serde_json::Error> {
    let mut lines = String::new();
    for report in reports {
        lines.push_str(&serde_json::to_string(report)?);
        lines.push('\n');
    }
    Ok(lines)
}

fn attention(reports: &[LetterReport]) -> String {
    let needs_attention = |report: &&LetterReport| {
        matches!(report.outcome, LetterOutcome::Parked | LetterOutcome::Deferred)
    };
    let line = |report: &LetterReport| {
        let origin = report.origin.as_ref().map(|origin| format!(" (from {origin})"));
        let origin = origin.unwrap_or_default();
        let target = report.parked_to.as_ref().map(|topic| format!(" in {topic}"));
        let target = target.unwrap_or_default();
        let LetterReport { letter, outcome, detail, .. } = report;
        let line = format!("{outcome}{target}: {letter}{origin}: {detail}");
        // Names of topics in headers may contain anything, such as commands to the terminal.
        line.replace(char::is_control, "\u{fffd}") + "\n"
    };
    reports.iter().filter(needs_attention).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_a_kill_has_cut_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        for (before, after) in [("", "x\n"), ("a\n", "a\nx\n"), ("a\nb", "a\nb\nx\n")] {
            std::fs::write(&path, before).unwrap();
            open(&path).unwrap().write_all(b"x\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
    }
}
