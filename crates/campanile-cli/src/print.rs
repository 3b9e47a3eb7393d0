//! Standard output.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use campanile_admin::AdminError;
use serde::Serialize;

/// Prints a line. Ends the process if the reader is gone, as `head` is after its last line.
pub(crate) fn print(text: &impl Display) -> Result<(), AdminError> {
    match writeln!(io::stdout().lock(), "{text}") {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(failed(error)),
    }
}

/// Prints a line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), AdminError> {
    print(&serde_json::to_string(value).map_err(|error| failed(error.into()))?)
}

fn failed(error: io::Error) -> AdminError {
    AdminError::Unavailable { action: "cannot print the result".into(), source: error.into() }
}
