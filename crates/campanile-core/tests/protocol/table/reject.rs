//! `reject` in every situation.

use campanile_core::{Operation, Reply, State};

use super::{Becomes, MAX, Same, check, check_lost_to_others, check_one, p, p_burial};
use crate::draft::{Draft, NOW, my_grant};

fn reject(reason: &str) -> Operation {
    Operation::Reject { grant: my_grant(), reason: reason.into() }
}

fn rejected() -> Draft {
    Draft::new(State::Failed, NOW).with_error("given up")
}

#[test]
fn reject_matches_table() {
    check(
        &reject("given up"),
        &[
            ("absent", Same, Reply::Lost),
            ("P mine, live", Becomes(rejected()), Reply::Rejected),
            ("P mine, expired", Becomes(rejected()), Reply::Rejected),
            (
                "P mine, burial",
                Becomes(Draft { attempt: MAX, burials: 1, ..rejected() }),
                Reply::Rejected,
            ),
            ("P other, live", Same, Reply::Lost),
            ("P other, expired", Same, Reply::Lost),
            ("R mine, waiting", Same, Reply::Settled(State::Retrying)),
            ("R mine, due", Same, Reply::Settled(State::Retrying)),
            ("R mine, released", Same, Reply::Settled(State::Retrying)),
            ("R other, waiting", Same, Reply::Lost),
            ("R other, due", Same, Reply::Lost),
            ("R other, released", Same, Reply::Lost),
            ("R other, doomed", Same, Reply::Lost),
            ("R other, exhausted", Same, Reply::Lost),
            ("R reopened", Same, Reply::Lost),
            ("C mine", Same, Reply::Settled(State::Completed)),
            ("C other", Same, Reply::Lost),
            ("F mine", Same, Reply::Rejected),
            ("F other", Same, Reply::Lost),
        ],
    );
    check_lost_to_others(&reject("given up"));
}

#[test]
fn reject_without_reason_keeps_last_error_and_doomed_flag() {
    let before = Draft { doomed: true, ..p_burial() };
    let after = Draft { state: State::Failed, burial: false, at: NOW, ..before.clone() };
    check_one("P mine, burial", Some(before), &reject(""), (Some(after), Reply::Rejected));
}

#[test]
fn reject_of_first_attempt_without_reason_stores_none() {
    let after = rejected().without_tail();
    check_one("P mine, live", Some(p()), &reject(""), (Some(after), Reply::Rejected));
}
