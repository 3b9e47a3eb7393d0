//! The same key with another payload.

use campanile_core::{Operation, Reply};
use proptest::prelude::*;

use crate::check::check;
use crate::simulation::{Faults, histories};

/// Replies and reasons name the payload that they are about, as its fingerprint does; so the answer
/// for a payload must never be another's. Whatever gets lost.
#[test]
fn reply_never_belongs_to_another_payload() {
    check(300, &histories(Faults::ALL), |history| {
        for (_, step) in history.steps() {
            let Operation::Acquire { fingerprint: Some(requested), .. } = step.operation else {
                continue;
            };
            let payload_of_reply = match &step.reply {
                Reply::Duplicate { reply, .. } => {
                    reply.as_ref().map(|reply| String::from_utf8_lossy(reply).into_owned())
                }
                Reply::Parked { reason, .. } => reason.as_ref().map(ToString::to_string),
                _ => continue,
            };
            prop_assert_eq!(payload_of_reply, Some(requested.to_bits().to_string()));
        }
        Ok(())
    });
}
