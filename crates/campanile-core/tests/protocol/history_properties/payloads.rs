//! The same key with another payload.

use campanile_core::{Operation, Reply};
use proptest::prelude::*;

use crate::check::check;
use crate::world::{Faults, histories};

/// Replies and reasons name the payload that they are about, as its fingerprint does; so the answer
/// for a payload must never be another's. Whatever gets lost.
#[test]
fn a_mismatch_is_never_the_other_payloads_reply() {
    check(300, &histories(Faults::ALL), |history| {
        for (_, step) in history.steps() {
            let Operation::Acquire { fingerprint: Some(asked), .. } = step.operation else {
                continue;
            };
            let told = match &step.reply {
                Reply::Duplicate { reply, .. } => {
                    reply.as_ref().map(|reply| String::from_utf8_lossy(reply).into_owned())
                }
                Reply::Parked { reason, .. } => reason.as_ref().map(ToString::to_string),
                _ => continue,
            };
            prop_assert_eq!(told, Some(asked.to_bits().to_string()));
        }
        Ok(())
    });
}
