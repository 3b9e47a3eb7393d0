//! The table: every operation in every situation of an entry.
//!
//! Each operation has its own file. `check` asserts that every file contains all the rows.

mod acquire;
mod cancel;
mod complete;
mod fail;
mod give_up;
mod record_step;
mod redrive;
mod release;
mod renew;

use campanile_core::{Operation, Reply, State, step};

use crate::draft::{Draft, HOUR, NOW, OTHER, SECOND, time};

/// The expected entry after an operation.
enum After {
    Same,
    Becomes(Draft),
}

use After::{Becomes, Same};

/// When a waiting entry becomes due, or a live lock expires.
const LATER: u64 = NOW + 20 * SECOND;
/// When an entry became due, a lock expired, or the key was settled.
const EARLIER: u64 = NOW - SECOND;

/// The maximum number of attempts in the acquires of the table.
const MAX: u16 = 3;

/// All situations and their entries. P, R, C and F stand for the states. "Mine" is a grant of `ME`
/// at `TOKEN`, "other" one of `OTHER`.
fn situations() -> Vec<(&'static str, Option<Draft>)> {
    vec![
        ("absent", None),
        ("P mine, live", Some(p())),
        ("P mine, expired", Some(Draft { at: EARLIER, ..p() })),
        ("P mine, giving up", Some(p_giving_up())),
        ("P other, live", Some(Draft { owner: OTHER, ..p() })),
        ("P other, expired", Some(Draft { owner: OTHER, at: EARLIER, ..p() })),
        ("R mine, waiting", Some(r())),
        ("R mine, due", Some(Draft { at: EARLIER, ..r() })),
        ("R mine, released", Some(r_released())),
        ("R other, waiting", Some(Draft { owner: OTHER, ..r() })),
        ("R other, due", Some(Draft { owner: OTHER, at: EARLIER, ..r() })),
        ("R other, released", Some(Draft { owner: OTHER, ..r_released() })),
        (
            "R other, permanent failure",
            Some(Draft { owner: OTHER, at: EARLIER, permanent_failure: true, ..r() }),
        ),
        ("R other, exhausted", Some(Draft { owner: OTHER, at: EARLIER, attempt: MAX, ..r() })),
        ("R reopened", Some(r_reopened())),
        ("C mine", Some(c())),
        ("C other", Some(Draft { owner: OTHER, ..c() })),
        ("F mine", Some(f())),
        ("F other", Some(Draft { owner: OTHER, ..f() })),
    ]
}

fn p() -> Draft {
    Draft::new(State::Processing, LATER)
}

fn p_giving_up() -> Draft {
    Draft { giving_up: true, attempt: MAX, give_ups: 1, ..p() }.with_error("declined")
}

fn r() -> Draft {
    Draft::new(State::Retrying, LATER).with_error("declined")
}

fn r_released() -> Draft {
    Draft { released: true, attempt: 0, at: EARLIER, ..r() }.without_tail()
}

fn r_reopened() -> Draft {
    Draft { attempt: 0, owner: 0, at: EARLIER, ..r() }
}

fn c() -> Draft {
    Draft::new(State::Completed, EARLIER).with_reply(b"receipt")
}

fn f() -> Draft {
    Draft { attempt: MAX, ..Draft::new(State::Failed, EARLIER) }.with_error("declined")
}

/// Checks the operation in every situation. `rows` has all [`situations`], in the same order.
fn check(operation: &Operation, rows: &[(&str, After, Reply)]) {
    let situations = situations();
    let names = |all: Vec<&'static str>| all.join(", ");
    assert_eq!(
        rows.iter().map(|row| row.0).collect::<Vec<_>>().join(", "),
        names(situations.iter().map(|situation| situation.0).collect()),
        "the table must have a row for every situation"
    );
    for ((name, before), (_, after, reply)) in situations.into_iter().zip(rows) {
        let expected = match after {
            Same => before.clone(),
            Becomes(after) => Some(after.clone()),
        };
        check_one(name, before, operation, (expected, reply.clone()));
    }
}

/// Checks a single row.
fn check_one(
    name: &str,
    before: Option<Draft>,
    operation: &Operation,
    expected: (Option<Draft>, Reply),
) {
    let (after, reply) = step(before.map(|draft| draft.entry()), operation, time(NOW));
    let expected = (expected.0.map(|draft| draft.entry()), expected.1);
    assert_eq!((after, reply), expected, "{name}: {operation:?}");
}

/// Checks that the operation replies `Lost` and changes nothing if the grant of the entry differs
/// from `my_grant` only in its token, or only in its owner.
fn check_lost_to_others(operation: &Operation) {
    for (name, draft) in situations() {
        let Some(draft) = draft else { continue };
        for other in [
            Draft { owner: OTHER, ..draft.clone() },
            Draft { token: draft.token - HOUR, ..draft.clone() },
            Draft { token: draft.token + HOUR, ..draft },
        ] {
            check_one(name, Some(other.clone()), operation, (Some(other), Reply::Lost));
        }
    }
}
