//! A key that is used again with a different payload.

use campanile_core::{Operation, Reply};
use proptest::prelude::*;

use crate::check::check;
use crate::simulation::{Faults, histories};

/// The simulated replies and reasons name their payload by its fingerprint, so the reply for one
/// payload must never be that of another, whatever is lost.
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
                Reply::AlreadyGivenUp { reason, .. } => reason.as_ref().map(ToString::to_string),
                _ => continue,
            };
            prop_assert_eq!(payload_of_reply, Some(requested.to_bits().to_string()));
        }
        Ok(())
    });
}
