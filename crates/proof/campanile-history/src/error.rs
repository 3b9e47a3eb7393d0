//! Histories that cannot be read.

use std::{fmt, io};

use crate::printable::Printable;

/// How many characters of a problem are printed.
const MAX_LENGTH: usize = 2_000;

/// Why a history could not be read. Contains the file, and the line if one is wrong.
#[derive(Debug)]
pub struct ReadError {
    pub(crate) file: String,
    pub(crate) line: Option<usize>,
    pub(crate) problem: Problem,
}

#[derive(Debug)]
pub(crate) enum Problem {
    Io(io::Error),
    Invalid(String),
}

impl ReadError {
    pub(crate) fn new(file: &str, line: Option<usize>, problem: impl Into<Problem>) -> Self {
        Self { file: file.into(), line, problem: problem.into() }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self::Invalid(text)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Printable(&self.file))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        match &self.problem {
            Problem::Io(_) => write!(f, ": cannot be read"),
            Problem::Invalid(text) => write!(f, ": {}", Printable(shorten(text))),
        }
    }
}

/// Returns the beginning of a text, which may contain a value of any length.
fn shorten(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_LENGTH).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            Problem::Invalid(_) => None,
        }
    }
}
