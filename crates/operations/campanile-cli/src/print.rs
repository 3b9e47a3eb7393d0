//! Standard output.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use campanile_admin::AdminError;
use serde::Serialize;

/// Prints a line. If the reader is gone, as `head` is after its last line, the verb goes on, so that its
/// exit code is that of what it found or changed.
pub(crate) fn print(text: &impl Display) -> Result<(), AdminError> {
    try_print(text).map(drop)
}

/// Prints a line of JSON, as [`print`] does.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), AdminError> {
    print(&json(value)?)
}

/// Prints a line of many. Ends the process if the reader is gone.
pub(crate) fn print_while_read(text: &impl Display) -> Result<(), AdminError> {
    if !try_print(text)? {
        std::process::exit(0);
    }
    Ok(())
}

/// Prints a line of JSON, as [`print_while_read`] does.
pub(crate) fn print_json_while_read(value: &impl Serialize) -> Result<(), AdminError> {
    print_while_read(&json(value)?)
}

/// Returns whether somebody reads.
fn try_print(text: &impl Display) -> Result<bool, AdminError> {
    match writeln!(io::stdout().lock(), "{text}") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

fn json(value: &impl Serialize) -> Result<String, AdminError> {
    serde_json::to_string(value).map_err(|error| failed(error.into()))
}

fn failed(error: io::Error) -> AdminError {
    AdminError::Unavailable { action: "cannot print the result".into(), source: error.into() }
}
