//! `complete` in every situation.

use bytes::Bytes;
use campanile_core::{Operation, Reply, State};

use super::{Becomes, MAX, Same, check, check_lost_to_others, check_one, p};
use crate::draft::{Draft, NOW, SECOND, fingerprint, my_grant};

fn complete(reply: Option<&'static [u8]>) -> Operation {
    Operation::Complete {
        grant: my_grant(),
        attempt: 2,
        fingerprint: Some(fingerprint(7)),
        reply: reply.map(Bytes::from_static),
        details: None,
    }
}

/// The entry after completion. It keeps its own attempt and fingerprint; those of the command are
/// for an entry that no longer exists.
fn completed() -> Draft {
    Draft::new(State::Completed, NOW).with_reply(b"done")
}

fn adopted() -> Draft {
    Draft { attempt: 2, fingerprint: 7, created: (NOW / SECOND) as u32, ..completed() }
}

#[test]
fn complete_matches_table() {
    check(
        &complete(Some(b"done")),
        &[
            ("absent", Becomes(adopted()), Reply::Completed),
            ("P mine, live", Becomes(completed()), Reply::Completed),
            ("P mine, expired", Becomes(completed()), Reply::Completed),
            (
                "P mine, giving up",
                Becomes(Draft { attempt: MAX, give_ups: 1, ..completed() }),
                Reply::Completed,
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
            ("C mine", Same, Reply::Completed),
            ("C other", Same, Reply::Lost),
            ("F mine", Same, Reply::Settled(State::Failed)),
            ("F other", Same, Reply::Lost),
        ],
    );
    check_lost_to_others(&complete(Some(b"done")));
}

#[test]
fn complete_clears_flags_and_keeps_fingerprint() {
    let before = Draft {
        giving_up: true,
        permanent_failure: true,
        fingerprint: 9,
        interrupts: 3,
        give_ups: 2,
        ..p().with_error("declined")
    };
    let after = Draft { fingerprint: 9, interrupts: 3, give_ups: 2, ..completed() };
    let expected = (Some(after), Reply::Completed);
    check_one("P mine, permanent failure", Some(before), &complete(Some(b"done")), expected);
}

#[test]
fn complete_without_reply_clears_last_error() {
    let before = p().with_error("declined");
    let after = completed().without_tail();
    let expected = (Some(after), Reply::Completed);
    check_one("P mine, tried before", Some(before), &complete(None), expected);
}

#[test]
fn complete_distinguishes_empty_reply_from_none() {
    let expected = (Some(completed().with_reply(b"")), Reply::Completed);
    check_one("P mine, live", Some(p()), &complete(Some(b"")), expected);
}
