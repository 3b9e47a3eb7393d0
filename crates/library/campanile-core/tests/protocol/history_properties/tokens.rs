//! Properties of the fencing token.

use std::collections::HashMap;

use campanile_core::{FencingToken, Reply};
use proptest::prelude::*;

use crate::check::check;
use crate::simulation::{Faults, histories};

/// Also holds after the entry expires, as long as the store's clock does not jump back.
#[test]
fn token_increases_with_each_grant_of_a_key() {
    check(200, &histories(Faults::NONE), |history| {
        let mut last = HashMap::new();
        for (key, step) in history.steps() {
            let Some(entry) = step.new_grant() else { continue };
            let previous = last.insert(key, entry.token()).unwrap_or(FencingToken::ZERO);
            prop_assert!(entry.token() > previous, "{previous} and then {}", entry.token());
        }
        Ok(())
    });
}

/// Every reply with the same token reports the same grant: one owner, one attempt, and either a run
/// or a give-up.
#[test]
fn token_belongs_to_one_owner_and_attempt() {
    check(200, &histories(Faults::NONE), |history| {
        let mut seen = HashMap::new();
        for (key, step) in history.steps() {
            let (token, grant) = match step.reply {
                Reply::Acquired { token, attempt, .. } => (token, (attempt, 0)),
                Reply::Exhausted { token, attempt, give_ups, .. } => (token, (attempt, give_ups)),
                _ => continue,
            };
            let owner = step.after.as_ref().and_then(|entry| entry.owner());
            let first = seen.entry((key, token)).or_insert((owner, grant));
            prop_assert_eq!(*first, (owner, grant));
        }
        Ok(())
    });
}
