//! Strategies for arbitrary entries and operations: any readable entry meets any operation, whether
//! or not a client would ever send it.
//!
//! Values come from small pools of boundary values, so that equal and adjacent values often meet.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{Details, FencingToken, Fingerprint, Grant, Operation, Owner, State};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::draft::{DAY, Draft, HOUR, ME, NOW, OTHER, SECOND, TOKEN, owner, stored_step, token};
use crate::step_properties::Step;

const LIMIT: u64 = 1 << 53;

/// Generates steps: one operation on one entry, or on none, at some time.
pub(crate) fn steps() -> impl Strategy<Value = Step> {
    (option::weighted(0.9, drafts()), ends(), operations(), any::<bool>(), clocks()).prop_map(
        |(draft, end, operation, is_targeted, now)| {
            let draft = draft.map(|draft| Draft { at: now.saturating_add_signed(end), ..draft });
            let operation = match &draft {
                Some(draft) if is_targeted => targeted(operation, draft),
                _ => operation,
            };
            Step::apply(draft.map(|draft| draft.entry()), operation, now)
        },
    )
}

fn clocks() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => Just(NOW),
        2 => select(vec![0, 1, HOUR, LIMIT - 2, LIMIT - 1, LIMIT, LIMIT + HOUR]),
    ]
}

fn tokens() -> impl Strategy<Value = u64> {
    select(vec![0, TOKEN, TOKEN + 1, NOW - 1, NOW, NOW + SECOND, LIMIT - 2, LIMIT - 1])
}

/// Generates the end of a lock or backoff, relative to now.
fn ends() -> impl Strategy<Value = i64> {
    let spans = [1, SECOND, HOUR, HOUR + 1, DAY, DAY + 1, 400 * DAY].map(|span| span as i64);
    let all = spans.into_iter().flat_map(|span| [-span, span]);
    select(all.chain([0, i64::MIN, i64::MAX]).collect::<Vec<_>>())
}

fn drafts() -> impl Strategy<Value = Draft> {
    let states = vec![State::Processing, State::Retrying, State::Completed, State::Failed];
    let grant = (tokens(), select(vec![0, ME, OTHER]), select(vec![0, 1, 2]));
    let counters = (
        select(vec![0, 1, 2, 3, u16::MAX - 1, u16::MAX]),
        select(vec![0, 1, 7, 8, 9, 255]),
        select(vec![0, 1, 254, 255]),
    );
    // Of the kinds 3 and 4, some have details of this length. Kind 5 has a step before another tail.
    let plain = (0..7_u8, vec(0..3_u8, 0..6));
    let tail = (plain, option::weighted(0.3, select(vec!["charge", "ship"]))).prop_map(
        |((kind, tail), step)| match step {
            Some(name) => (5, [&stored_step(name, b"ok")[..], &[kind], &tail].concat()),
            None => (kind, tail),
        },
    );
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (select(states), grant, counters, flags, tail, any::<u8>()).prop_map(
        |(state, grant, counters, flags, tail, spare)| Draft {
            state,
            giving_up: flags.0,
            permanent_failure: flags.1,
            released: flags.2,
            attempt: counters.0,
            interrupts: counters.1,
            give_ups: counters.2,
            kind: tail.0,
            spare,
            token: grant.0,
            owner: grant.1,
            fingerprint: grant.2,
            created: (TOKEN / SECOND) as u32,
            at: 0,
            tail: tail.1,
        },
    )
}

fn operations() -> impl Strategy<Value = Operation> {
    let maxima = select(vec![0, 1, 2, 3, u16::MAX]);
    let acquires = (owners(), durations(), maxima, fingerprints(), tokens(), details()).prop_map(
        |(owner, ttl, max_attempts, fingerprint, floor, details)| Operation::Acquire {
            owner,
            ttl,
            max_attempts,
            fingerprint,
            floor: token(floor),
            details,
        },
    );
    let renewals = (grants(), durations()).prop_map(|(grant, ttl)| Operation::Renew { grant, ttl });
    let attempts = select(vec![0, 1, u16::MAX]);
    let completions = (grants(), attempts, fingerprints(), replies(), details()).prop_map(
        |(grant, attempt, fingerprint, reply, details)| Operation::Complete {
            grant,
            attempt,
            fingerprint,
            reply,
            details,
        },
    );
    let failures = (grants(), durations(), any::<bool>(), texts())
        .prop_map(|(grant, delay, last, error)| Operation::Fail { grant, delay, last, error });
    let releases =
        (grants(), any::<bool>()).prop_map(|(grant, ran)| Operation::Release { grant, ran });
    let cancels = owners().prop_map(|owner| Operation::Cancel { owner });
    let steps = (grants(), step_names(), select(vec![0, 2, 65_519, 65_520])).prop_map(
        |(grant, name, len)| Operation::RecordStep { grant, name, result: vec![7; len].into() },
    );
    let rejections =
        (grants(), texts()).prop_map(|(grant, reason)| Operation::GiveUp { grant, reason });
    let redrives = (tokens(), any::<bool>())
        .prop_map(|(value, force)| Operation::Redrive { token: token(value), force });
    prop_oneof![
        3 => acquires,
        1 => renewals,
        1 => completions,
        1 => failures,
        1 => releases,
        1 => cancels,
        1 => steps,
        1 => rejections,
        1 => redrives,
    ]
}

fn details() -> impl Strategy<Value = Option<Details>> {
    let details = |instance| Details::builder(owner(ME)).instance(instance).build();
    option::of(select(vec!["", "host/1"]).prop_map(details))
}

fn owners() -> impl Strategy<Value = Owner> {
    select(vec![ME, OTHER]).prop_map(owner)
}

fn grants() -> impl Strategy<Value = Grant> {
    (tokens(), owners()).prop_map(|(value, owner)| Grant { token: token(value), owner })
}

fn durations() -> impl Strategy<Value = Duration> {
    let micros = [0, 1, SECOND, 30 * SECOND, HOUR, HOUR + 1, DAY, DAY + 1];
    let odd = [Duration::from_nanos(1_999), Duration::MAX];
    let whole = micros.into_iter().map(Duration::from_micros);
    select(whole.chain(odd).collect::<Vec<_>>())
}

fn fingerprints() -> impl Strategy<Value = Option<Fingerprint>> {
    select(vec![0, 1, 2]).prop_map(Fingerprint::from_bits)
}

fn replies() -> impl Strategy<Value = Option<Bytes>> {
    option::of(vec(any::<u8>(), 0..4).prop_map(Bytes::from))
}

fn step_names() -> impl Strategy<Value = Box<str>> {
    let names = ["charge", "ship", ""].map(str::to_owned);
    let long = [64, 65].map(|length| "x".repeat(length));
    select(names.into_iter().chain(long).collect::<Vec<_>>()).prop_map(String::into_boxed_str)
}

fn texts() -> impl Strategy<Value = Box<str>> {
    let texts = ["", "", "no", "é"].map(str::to_owned);
    let long = [511, 512, 513].map(|length| "x".repeat(length - 1) + "é");
    select(texts.into_iter().chain(long).collect::<Vec<_>>()).prop_map(String::into_boxed_str)
}

/// Redirects the operation to the entry, by the entry's grant, owner or token.
fn targeted(operation: Operation, draft: &Draft) -> Operation {
    let token = FencingToken::new(draft.token).expect("a draft's token is below 2^53");
    let Some(owner) = Owner::new(draft.owner) else {
        return operation;
    };
    let mut operation = operation;
    match &mut operation {
        Operation::Acquire { owner: target, .. } | Operation::Cancel { owner: target } => {
            *target = owner
        }
        Operation::Redrive { token: target, .. } => *target = token,
        Operation::Renew { grant, .. }
        | Operation::Complete { grant, .. }
        | Operation::Fail { grant, .. }
        | Operation::Release { grant, .. }
        | Operation::RecordStep { grant, .. }
        | Operation::GiveUp { grant, .. } => *grant = Grant { token, owner },
        _ => {}
    }
    operation
}
