//! `cancel` in every situation.

use campanile_core::{Operation, Reply, State};

use super::{Becomes, Same, check, check_one, p, p_giving_up};
use crate::draft::{Draft, ME, NOW, OTHER, TOKEN, owner};

fn cancel() -> Operation {
    Operation::Cancel { owner: owner(ME) }
}

fn released(before: Draft) -> Draft {
    let give_ups = before.give_ups - u8::from(before.giving_up);
    Draft { state: State::Retrying, released: true, giving_up: false, give_ups, at: NOW, ..before }
}

#[test]
fn cancel_matches_table() {
    let handed_back = || Becomes(Draft { attempt: 0, ..released(p()) });
    check(
        &cancel(),
        &[
            ("absent", Same, Reply::Released),
            ("P mine, live", handed_back(), Reply::Released),
            ("P mine, expired", handed_back(), Reply::Released),
            ("P mine, giving up", Becomes(released(p_giving_up())), Reply::Released),
            ("P other, live", Same, Reply::Lost),
            ("P other, expired", Same, Reply::Lost),
            ("R mine, waiting", Same, Reply::Released),
            ("R mine, due", Same, Reply::Released),
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
}

#[test]
fn cancel_compares_only_the_owner() {
    let before = Draft { token: TOKEN + 1, ..p() };
    let after = Draft { attempt: 0, ..released(before.clone()) };
    check_one("P mine, any token", Some(before), &cancel(), (Some(after), Reply::Released));
    let other = Draft { owner: OTHER, ..p() };
    check_one("P other, my token", Some(other.clone()), &cancel(), (Some(other), Reply::Lost));
}
