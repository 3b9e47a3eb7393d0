//! `redrive` in every situation.

use campanile_core::{Operation, Reply, State};

use super::{Becomes, MAX, Same, c, check, check_one, f, r, r_released, situations};
use crate::draft::{Draft, NOW, TOKEN, token};

fn redrive(force: bool) -> Operation {
    Operation::Redrive { token: token(TOKEN), force }
}

fn reopened(before: Draft) -> Draft {
    Draft {
        state: State::Retrying,
        giving_up: false,
        permanent_failure: false,
        released: false,
        attempt: 0,
        interrupts: 0,
        give_ups: 0,
        owner: 0,
        fingerprint: 0,
        at: NOW,
        ..before
    }
}

#[test]
fn redrive_matches_table() {
    let settled = Reply::Settled;
    check(
        &redrive(false),
        &[
            ("absent", Same, Reply::Lost),
            ("P mine, live", Same, settled(State::Processing)),
            ("P mine, expired", Same, settled(State::Processing)),
            ("P mine, giving up", Same, settled(State::Processing)),
            ("P other, live", Same, settled(State::Processing)),
            ("P other, expired", Same, settled(State::Processing)),
            ("R mine, waiting", Same, settled(State::Retrying)),
            ("R mine, due", Same, settled(State::Retrying)),
            ("R mine, released", Same, settled(State::Retrying)),
            ("R other, waiting", Same, settled(State::Retrying)),
            ("R other, due", Same, settled(State::Retrying)),
            ("R other, released", Same, settled(State::Retrying)),
            ("R other, permanent failure", Same, settled(State::Retrying)),
            ("R other, exhausted", Same, settled(State::Retrying)),
            ("R reopened", Same, Reply::Reopened),
            ("C mine", Same, settled(State::Completed)),
            ("C other", Same, settled(State::Completed)),
            ("F mine", Becomes(reopened(f())), Reply::Reopened),
            ("F other", Becomes(reopened(f())), Reply::Reopened),
        ],
    );
}

#[test]
fn forced_redrive_matches_table() {
    let from_r = || Becomes(reopened(r()));
    let from_released = || Becomes(reopened(r_released()));
    let from_c = || Becomes(reopened(c().without_tail()));
    let locked = || Reply::Settled(State::Processing);
    check(
        &redrive(true),
        &[
            ("absent", Same, Reply::Lost),
            ("P mine, live", Same, locked()),
            ("P mine, expired", Same, locked()),
            ("P mine, giving up", Same, locked()),
            ("P other, live", Same, locked()),
            ("P other, expired", Same, locked()),
            ("R mine, waiting", from_r(), Reply::Reopened),
            ("R mine, due", from_r(), Reply::Reopened),
            ("R mine, released", from_released(), Reply::Reopened),
            ("R other, waiting", from_r(), Reply::Reopened),
            ("R other, due", from_r(), Reply::Reopened),
            ("R other, released", from_released(), Reply::Reopened),
            ("R other, permanent failure", from_r(), Reply::Reopened),
            ("R other, exhausted", from_r(), Reply::Reopened),
            ("R reopened", Same, Reply::Reopened),
            ("C mine", from_c(), Reply::Reopened),
            ("C other", from_c(), Reply::Reopened),
            ("F mine", Becomes(reopened(f())), Reply::Reopened),
            ("F other", Becomes(reopened(f())), Reply::Reopened),
        ],
    );
}

#[test]
fn redrive_with_other_token_is_lost() {
    for (name, draft) in situations() {
        let Some(draft) = draft else { continue };
        for force in [false, true] {
            let other = Draft { token: TOKEN + 1, ..draft.clone() };
            let expected = (Some(other.clone()), Reply::Lost);
            check_one(name, Some(other), &redrive(force), expected);
        }
    }
}

/// No operation leaves such an entry, but all stores must judge it alike.
#[test]
fn attempted_entry_without_owner_is_not_reopened() {
    let before = || Draft { owner: 0, ..r() };
    let settled = Reply::Settled(State::Retrying);
    check_one("R, no owner", Some(before()), &redrive(false), (Some(before()), settled));
    let after = (Some(reopened(before())), Reply::Reopened);
    check_one("R, no owner", Some(before()), &redrive(true), after);
}

#[test]
fn redrive_clears_all_counters() {
    let before = Draft {
        permanent_failure: true,
        attempt: MAX,
        interrupts: 8,
        give_ups: 5,
        fingerprint: 9,
        ..f()
    };
    let after = reopened(f());
    check_one("F, tried before", Some(before), &redrive(false), (Some(after), Reply::Reopened));
}

#[test]
fn redrive_keeps_only_an_error_tail() {
    for kind in [2, 3, 255] {
        let before = Draft { kind, tail: b"{}".to_vec(), ..f() };
        let after = reopened(f()).without_tail();
        check_one("F, other tail", Some(before), &redrive(false), (Some(after), Reply::Reopened));
    }
}
