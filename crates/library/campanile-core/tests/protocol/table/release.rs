//! `release` in every situation.

use campanile_core::{Operation, Reply, State};

use super::{Becomes, Same, check, check_lost_to_others, check_one, p, p_giving_up};
use crate::draft::{Draft, NOW, my_grant};

fn release(ran: bool) -> Operation {
    Operation::Release { grant: my_grant(), ran }
}

fn released(before: Draft) -> Draft {
    let give_ups = before.give_ups - u8::from(before.giving_up);
    Draft { state: State::Retrying, released: true, giving_up: false, give_ups, at: NOW, ..before }
}

#[test]
fn release_matches_table() {
    let handed_back = || Becomes(Draft { attempt: 0, ..released(p()) });
    check(
        &release(false),
        &[
            ("absent", Same, Reply::Lost),
            ("P mine, live", handed_back(), Reply::Released),
            ("P mine, expired", handed_back(), Reply::Released),
            ("P mine, giving up", Becomes(released(p_giving_up())), Reply::Released),
            ("P other, live", Same, Reply::Lost),
            ("P other, expired", Same, Reply::Lost),
            ("R mine, waiting", Same, Reply::Settled(State::Retrying)),
            ("R mine, due", Same, Reply::Settled(State::Retrying)),
            ("R mine, released", Same, Reply::Released),
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
    check_lost_to_others(&release(false));
}

#[test]
fn release_after_run_uncounts_attempt_eight_times() {
    for interrupts in 0..8 {
        let before = Draft { attempt: 2, interrupts, ..p() };
        let after = Draft { attempt: 1, interrupts: interrupts + 1, ..released(p()) };
        let expected = (Some(after), Reply::Released);
        check_one("P mine, interrupted", Some(before), &release(true), expected);
    }
    for interrupts in [8, 9, 255] {
        let before = Draft { attempt: 2, interrupts, ..p() };
        let after = Draft { attempt: 2, interrupts, ..released(p()) };
        let expected = (Some(after), Reply::Released);
        check_one("P mine, interrupted often", Some(before), &release(true), expected);
    }
}

#[test]
fn release_before_run_always_uncounts_attempt() {
    let before = Draft { attempt: 2, interrupts: 8, ..p() };
    let after = Draft { attempt: 1, interrupts: 8, ..released(p()) };
    let expected = (Some(after), Reply::Released);
    check_one("P mine, interrupted often", Some(before), &release(false), expected);
}

#[test]
fn release_of_give_up_lock_counts_nothing_and_keeps_error() {
    for ran in [false, true] {
        let before = Draft { permanent_failure: true, interrupts: 1, ..p_giving_up() };
        let after = released(before.clone());
        let expected = (Some(after), Reply::Released);
        check_one("P mine, giving up", Some(before), &release(ran), expected);
    }
}
