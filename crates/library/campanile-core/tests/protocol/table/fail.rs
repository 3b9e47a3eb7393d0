//! `fail` in every situation.

use std::time::Duration;

use campanile_core::{Operation, Reply, State};

use super::{Becomes, MAX, Same, check, check_lost_to_others, check_one, p, p_giving_up};
use crate::draft::{Draft, NOW, SECOND, my_grant};

const DELAY: u64 = 5 * SECOND;

fn fail(last: bool, error: &str) -> Operation {
    let delay = Duration::from_micros(DELAY);
    Operation::Fail { grant: my_grant(), delay, last, error: error.into() }
}

fn failed() -> Draft {
    Draft::new(State::Retrying, NOW + DELAY).with_error("no funds")
}

#[test]
fn fail_matches_table() {
    check(
        &fail(false, "no funds"),
        &[
            ("absent", Same, Reply::Lost),
            ("P mine, live", Becomes(failed()), Reply::Retrying),
            ("P mine, expired", Becomes(failed()), Reply::Retrying),
            (
                "P mine, giving up",
                // A give-up lock that is settled is not counted.
                Becomes(Draft { attempt: MAX, give_ups: 0, ..failed() }),
                Reply::Retrying,
            ),
            ("P other, live", Same, Reply::Lost),
            ("P other, expired", Same, Reply::Lost),
            ("R mine, waiting", Same, Reply::Retrying),
            ("R mine, due", Same, Reply::Retrying),
            ("R mine, released", Same, Reply::Settled(State::Retrying)),
            ("R other, waiting", Same, Reply::Lost),
            ("R other, due", Same, Reply::Lost),
            ("R other, released", Same, Reply::Lost),
            ("R other, permanent failure", Same, Reply::Lost),
            ("R other, exhausted", Same, Reply::Lost),
            ("R reopened", Same, Reply::Lost),
            ("C mine", Same, Reply::Settled(State::Completed)),
            ("C other", Same, Reply::Lost),
            ("F mine", Same, Reply::Settled(State::Failed)),
            ("F other", Same, Reply::Lost),
        ],
    );
    check_lost_to_others(&fail(false, "no funds"));
}

#[test]
fn last_fail_dooms_entry() {
    let after = Draft { permanent_failure: true, ..failed() };
    let expected = (Some(after), Reply::Retrying);
    check_one("P mine, live", Some(p()), &fail(true, "no funds"), expected);
}

#[test]
fn fail_keeps_permanent_failure() {
    let before = Draft { permanent_failure: true, ..p() };
    let after = Draft { permanent_failure: true, ..failed() };
    let expected = (Some(after), Reply::Retrying);
    check_one("P mine, permanent failure", Some(before), &fail(false, "no funds"), expected);
}

#[test]
fn fail_of_give_up_lock_keeps_handler_error() {
    let before = p_giving_up();
    let after = Draft {
        state: State::Retrying,
        giving_up: false,
        give_ups: 0,
        permanent_failure: true,
        at: NOW + DELAY,
        ..before.clone()
    };
    let expected = (Some(after), Reply::Retrying);
    check_one("P mine, giving up", Some(before), &fail(true, ""), expected);
}
