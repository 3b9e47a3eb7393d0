//! Writes histories.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::header::{HeaderTag, Unit};
use crate::history::EXTENSION;
use crate::{Event, Header, Settings, VERSION};

/// Appends the events of one process to its file.
///
/// # Durability
/// Each event is one write to a file that is opened for appending. When
/// [`record`](Self::record) returns, the kernel has the event: it survives the end of the process,
/// also by SIGKILL, but not the end of the machine, unless [`sync`](Self::sync) is called. A kill
/// leaves at most one incomplete line, which readers ignore. Several threads can record at the same
/// time; their lines are never mixed.
#[derive(Debug)]
pub struct Recorder {
    file: File,
}

impl Recorder {
    /// Creates the file `PROCESS.jsonl` in this folder, and writes its header.
    ///
    /// The name of the process must be unique in the history, also among the processes that are
    /// restarted, and valid as the name of a file. `clock` names the clock of all times, such as
    /// `boot@node-1`. The settings can be left to another process.
    ///
    /// # Errors
    /// Fails if the file exists or cannot be created.
    pub fn create(
        folder: impl AsRef<Path>,
        process: impl Into<String>,
        clock: impl Into<String>,
        settings: Option<Settings>,
    ) -> io::Result<Self> {
        let process = process.into();
        let path = folder.as_ref().join(format!("{process}.{EXTENSION}"));
        let file = OpenOptions::new().create_new(true).append(true).open(path)?;
        let recorder = Self { file };
        recorder.write(&Header {
            event: HeaderTag::History,
            version: VERSION,
            process,
            clock: clock.into(),
            unit: Unit::Microseconds,
            settings,
        })?;
        Ok(recorder)
    }

    /// Appends an event. When this returns, the kernel has it.
    ///
    /// # Errors
    /// Fails if the file cannot be written. A part of the line may have been written then, and
    /// readers refuse what follows it.
    pub fn record(&self, event: &Event) -> io::Result<()> {
        self.write(event)
    }

    /// Waits until the disk has all events.
    ///
    /// # Errors
    /// Fails if the disk does.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        (&self.file).write_all(&bytes)
    }
}
