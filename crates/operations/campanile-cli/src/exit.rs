//! The exit codes.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use campanile_admin::AdminError;
use campanile_core::error;

pub(crate) const HELP: &str = "\
Exit codes:
  0    done
  1    done, and something needs attention: it is printed
  2    wrong arguments or settings; nothing was changed
  3    a server could not be reached or refused a request (run the command again), or a record cannot be read
  130  stopped by Ctrl-C or SIGTERM; run the command again to continue";

/// The result of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Attention,
    Usage,
    Unavailable,
    Interrupted,
}

impl Exit {
    pub(crate) fn of(error: &AdminError) -> Self {
        match error {
            AdminError::Config(_) => Self::Usage,
            _ => Self::Unavailable,
        }
    }

    /// Prints an error with its sources.
    pub(crate) fn report(error: &(dyn Error + 'static), exit: Self) -> ExitCode {
        let mut texts: Vec<String> = error::sources(error).map(ToString::to_string).collect();
        // The errors of some libraries end with the text of their source.
        texts.dedup_by(|source, text| text.ends_with(source.as_str()));
        // Without a reader, the exit code still says what happened.
        let _ = writeln!(io::stderr(), "error: {}", texts.join(": "));
        exit.into()
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Attention => 1,
            Exit::Usage => 2,
            Exit::Unavailable => 3,
            Exit::Interrupted => 130,
        })
    }
}
