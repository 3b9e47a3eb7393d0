//! record_step: record the result of a step of the handler.

use bytes::Bytes;

use super::{held_by, owned_by};
use crate::entry::{Entry, State, Steps};
use crate::{Grant, Reply};

/// Keeps the first result of a step. A repeated command then has no effect, and an attempt that did not
/// learn that its step was recorded does not replace the result for the next one.
pub(super) fn apply(entry: &mut Option<Entry>, grant: Grant, name: &str, result: &Bytes) {
    if let Some(entry) = held_by(entry, grant)
        && find(entry, name).is_none()
        && let Some(steps) = Steps::with(entry.steps.as_ref(), name, result)
    {
        entry.steps = Some(steps);
    }
}

pub(super) fn reply(after: Option<&Entry>, grant: Grant, name: &str) -> Reply {
    match owned_by(after, grant) {
        None => Reply::Lost,
        Some(entry) if entry.state == State::Processing => match find(entry, name) {
            Some(_) => Reply::StepRecorded,
            None => Reply::StepTooLarge,
        },
        Some(entry) => Reply::Settled(entry.state),
    }
}

fn find(entry: &Entry, name: &str) -> Option<Bytes> {
    entry.steps.as_ref()?.get(name)
}
