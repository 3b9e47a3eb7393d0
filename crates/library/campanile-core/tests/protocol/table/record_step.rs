//! `record_step` in every situation.

use bytes::Bytes;
use campanile_core::limits::{MAX_STEP_NAME_BYTES, MAX_STEPS_BYTES};
use campanile_core::{FencingToken, Operation, Reply, State, step};
use std::time::Duration;

use super::{
    Becomes, EARLIER, LATER, Same, check, check_lost_to_others, check_one, p, p_giving_up, r,
};
use crate::draft::{Draft, NOW, OTHER, my_grant, owner, time};

fn record(name: &str, result: &'static [u8]) -> Operation {
    let result = Bytes::from_static(result);
    Operation::RecordStep { grant: my_grant(), name: name.into(), result }
}

#[test]
fn record_step_matches_table() {
    let recorded = |draft: Draft| Becomes(draft.with_step("charge", b"c-1"));
    check(
        &record("charge", b"c-1"),
        &[
            ("absent", Same, Reply::Lost),
            ("P mine, live", recorded(p()), Reply::StepRecorded),
            ("P mine, expired", recorded(Draft { at: EARLIER, ..p() }), Reply::StepRecorded),
            ("P mine, giving up", recorded(p_giving_up()), Reply::StepRecorded),
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
            ("F mine", Same, Reply::Settled(State::Failed)),
            ("F other", Same, Reply::Lost),
        ],
    );
    check_lost_to_others(&record("charge", b"c-1"));
}

#[test]
fn first_result_of_a_step_is_kept() {
    let before = p().with_step("charge", b"c-1");
    let same = Some(before.clone());
    check_one("P mine", Some(before), &record("charge", b"c-2"), (same, Reply::StepRecorded));
}

#[test]
fn steps_are_kept_in_the_order_of_their_records() {
    let (entry, _) =
        step(Some(p().with_step("reserve", b"").entry()), &record("charge", b"c-1"), time(NOW));
    let steps = entry.as_ref().and_then(|entry| entry.steps()).expect("recorded");
    assert_eq!(steps.names().collect::<Vec<_>>(), ["reserve", "charge"]);
}

#[test]
fn step_beyond_a_limit_is_refused_and_changes_nothing() {
    let result = vec![7; MAX_STEPS_BYTES - 11];
    let name = "n".repeat(MAX_STEP_NAME_BYTES + 1);
    for (name, result) in [("charge", &result[..]), ("t", &[7; MAX_STEPS_BYTES - 5]), (&name, b"")]
    {
        let result = Bytes::copy_from_slice(result);
        let record = Operation::RecordStep { grant: my_grant(), name: name.into(), result };
        let after = (Some(p().with_step("s", b"")), Reply::StepTooLarge);
        check_one("P mine", Some(p().with_step("s", b"")), &record, after);
    }
}

#[test]
fn next_attempt_gets_the_steps() {
    let acquire = Operation::Acquire {
        owner: owner(OTHER),
        ttl: Duration::from_micros(LATER - NOW),
        max_attempts: 0,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    };
    let before = Draft { at: EARLIER, ..r() }.with_step("charge", b"c-1");
    let (_, reply) = step(Some(before.entry()), &acquire, time(NOW));
    let Reply::Acquired { attempt: 2, steps: Some(steps), .. } = reply else { panic!("{reply:?}") };
    assert_eq!(steps.get("charge").as_deref(), Some(&b"c-1"[..]));
}
