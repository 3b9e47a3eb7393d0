//! The error of a handler's step.

use std::error::Error;
use std::fmt;

use crate::limits::{MAX_STEP_NAME_BYTES, MAX_STEPS_BYTES};
use crate::{BoxError, LockLost};

/// The error of [`LockHandle::step`](crate::LockHandle::step), besides that of the step itself.
///
/// By default, the attempt has failed and is retried, except that a failure after
/// [`NotEncoded`](Self::NotEncoded) or [`TooLarge`](Self::TooLarge) is permanent, whatever error without a
/// marker the handler returns: the step would run in each attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum StepError {
    /// The lock is not that of a running handler: it is held to publish a dead letter. The step has not
    /// run.
    NoHandler,
    /// The name is empty or too long. The step has not run.
    InvalidName {
        /// The name of the step.
        name: Box<str>,
    },
    /// The attempt has used the name before. The step has not run.
    Repeated {
        /// The name of the step.
        name: Box<str>,
    },
    /// The lock is lost. The step has not run, or it has run and its result may not be recorded.
    LockLost(LockLost),
    /// The step **has run**, and its result may not be recorded: encryption failed, or the store refused
    /// it, or did not answer for half of the lock's TTL. The next attempt may run the step again.
    ///
    /// Do not undo the step. The record may have reached the store, and the next attempt would then skip
    /// the step.
    NotRecorded {
        /// The name of the step.
        name: Box<str>,
        /// Why the store has not confirmed the record.
        source: BoxError,
    },
    /// The step **has run**, and its result cannot be encoded as JSON and decoded again, for example a map
    /// with keys that are not strings, or a `NaN`.
    NotEncoded {
        /// The name of the step.
        name: Box<str>,
        /// Why the result cannot be encoded or decoded.
        source: BoxError,
    },
    /// The step **has run**, and its result would exceed the limit of all steps together.
    TooLarge {
        /// The name of the step.
        name: Box<str>,
    },
    /// The step has a result that cannot be decrypted or decoded into its type. It has not run again.
    Unreadable {
        /// The name of the step.
        name: Box<str>,
        /// Why the result cannot be read.
        source: BoxError,
    },
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHandler => f.write_str(
                "a step needs the lock of a running handler; take it from the handler's request",
            ),
            Self::InvalidName { name } => {
                let start: String = name.chars().take(MAX_STEP_NAME_BYTES).collect();
                write!(
                    f,
                    "the name of a step has 1 to {MAX_STEP_NAME_BYTES} bytes, but `{}` has {}",
                    start.escape_debug(),
                    name.len()
                )
            }
            Self::Repeated { name } => write!(
                f,
                "step `{}` was used before in this attempt; give each step a name of its own, \
                 and retry a call inside its step",
                name.escape_debug()
            ),
            Self::LockLost(_) => f.write_str("the lock of a step is lost"),
            Self::NotRecorded { name, .. } => {
                let name = name.escape_debug();
                write!(f, "step `{name}` has run, but its result may not be recorded")
            }
            Self::NotEncoded { name, .. } => {
                write!(
                    f,
                    "step `{}` has run, but its result cannot be kept as JSON; return a type from \
                     it that serde_json encodes and decodes, such as an id",
                    name.escape_debug()
                )
            }
            Self::TooLarge { name } => write!(
                f,
                "step `{}` has run, but with its result the steps of the key would exceed \
                 {MAX_STEPS_BYTES} bytes; return less from it, such as an id",
                name.escape_debug()
            ),
            Self::Unreadable { name, .. } => write!(
                f,
                "the recorded result of step `{}` cannot be read; give a step another name if \
                 the type of its result changes",
                name.escape_debug()
            ),
        }
    }
}

impl Error for StepError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::LockLost(lost) => Some(lost),
            Self::NotRecorded { source, .. }
            | Self::NotEncoded { source, .. }
            | Self::Unreadable { source, .. } => Some(&**source),
            Self::NoHandler
            | Self::InvalidName { .. }
            | Self::Repeated { .. }
            | Self::TooLarge { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs quote an error's text and escape the quotation marks in it.
    #[test]
    fn text_has_nothing_to_escape_in_quotation_marks() {
        for error in [
            StepError::Repeated { name: "big".into() },
            StepError::NotRecorded { name: "big".into(), source: "no answer".into() },
            StepError::NotEncoded { name: "big".into(), source: "NaN".into() },
            StepError::TooLarge { name: "big".into() },
            StepError::Unreadable { name: "big".into(), source: "no number".into() },
        ] {
            let text = error.to_string();
            assert_eq!(format!("{text:?}"), format!("\"{text}\""));
            assert!(text.contains("step `big` "), "{text}");
            // The cause is not in the text.
            let has_source = matches!(
                error,
                StepError::NotRecorded { .. }
                    | StepError::NotEncoded { .. }
                    | StepError::Unreadable { .. }
            );
            assert_eq!(error.source().is_some(), has_source, "{text}");
        }
    }
}
