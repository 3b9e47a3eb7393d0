//! `give_up` in every situation.

use campanile_core::{Operation, Reply, State};

use super::{Becomes, MAX, Same, check, check_lost_to_others, check_one, p, p_giving_up};
use crate::draft::{Draft, NOW, my_grant};

fn give_up(reason: &str) -> Operation {
    Operation::GiveUp { grant: my_grant(), reason: reason.into() }
}

fn given_up() -> Draft {
    Draft::new(State::Failed, NOW).with_error("given up")
}

#[test]
fn reject_matches_table() {
    check(
        &give_up("given up"),
        &[
            ("absent", Same, Reply::Lost),
            ("P mine, live", Becomes(given_up()), Reply::GivenUp),
            ("P mine, expired", Becomes(given_up()), Reply::GivenUp),
            (
                "P mine, giving up",
                Becomes(Draft { attempt: MAX, give_ups: 1, ..given_up() }),
                Reply::GivenUp,
            ),
            ("P other, live", Same, Reply::Lost),
            ("P other, expired", Same, Reply::Lost),
            ("R mine, waiting", Same, Reply::Settled(State::Retrying)),
            ("R mine, due", Same, Reply::Settled(State::Retrying)),
            ("R mine, released", Same, Reply::Settled(State::Retrying)),
            ("R other, waiting", Same, Reply::Lost),
            ("R other, due", Same, Reply::Lost),
            ("R other, released", Same, Reply::Lost),
            ("R other, permanent failure", Same, Reply::Lost),
            ("R other, exhausted", Same, Reply::Lost),
            ("R reopened", Same, Reply::Lost),
            ("C mine", Same, Reply::Settled(State::Completed)),
            ("C other", Same, Reply::Lost),
            ("F mine", Same, Reply::GivenUp),
            ("F other", Same, Reply::Lost),
        ],
    );
    check_lost_to_others(&give_up("given up"));
}

#[test]
fn give_up_without_reason_keeps_last_error_and_flag() {
    let before = Draft { permanent_failure: true, ..p_giving_up() };
    let after = Draft { state: State::Failed, giving_up: false, at: NOW, ..before.clone() };
    check_one("P mine, giving up", Some(before), &give_up(""), (Some(after), Reply::GivenUp));
}

#[test]
fn reject_of_first_attempt_without_reason_stores_none() {
    let after = given_up().without_tail();
    check_one("P mine, live", Some(p()), &give_up(""), (Some(after), Reply::GivenUp));
}
