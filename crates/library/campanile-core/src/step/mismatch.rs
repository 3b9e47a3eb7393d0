//! Whether a key is used for another payload.

use crate::Fingerprint;
use crate::entry::{Entry, State};

/// Checks whether the entry's key was first used with another payload than that of this fingerprint. A key that
/// was never tried may change its payload. One with a recorded step was tried, whatever its counters say.
pub(super) fn is_mismatch(entry: &Entry, fingerprint: Option<Fingerprint>) -> bool {
    let never_tried = entry.state == State::Retrying
        && entry.attempt == 0
        && entry.interrupts == 0
        && entry.steps.is_none();
    let differ = matches!((fingerprint, entry.fingerprint), (Some(a), Some(b)) if a != b);
    differ && !never_tried
}
