//! `acquire` in every situation.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{FencingToken, Operation, Reply, State};

use super::{Becomes, EARLIER, LATER, MAX, Same, check, check_one, p_giving_up, r, situations};
use crate::draft::{Draft, ME, NOW, OTHER, SECOND, TOKEN, fingerprint, owner, time, token};

const TTL: u64 = 30 * SECOND;

fn acquire() -> Operation {
    Operation::Acquire {
        owner: owner(ME),
        ttl: Duration::from_micros(TTL),
        max_attempts: MAX,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    }
}

/// The entry after a grant at `NOW`.
fn granted(before: Draft) -> Draft {
    Draft {
        state: State::Processing,
        attempt: before.attempt + 1,
        released: false,
        token: NOW,
        owner: ME,
        at: NOW + TTL,
        ..before
    }
}

fn first_grant() -> Draft {
    let created = (NOW / SECOND) as u32;
    granted(Draft { attempt: 0, created, ..Draft::new(State::Processing, 0) })
}

fn giving_up(before: Draft) -> Draft {
    let attempt = before.attempt;
    Draft { giving_up: true, give_ups: before.give_ups + 1, attempt, ..granted(before) }
}

fn acquired(attempt: u16) -> Reply {
    Reply::Acquired { token: token(NOW), attempt, steps: None }
}

fn exhausted(token: u64, attempt: u16) -> Reply {
    let token = self::token(token);
    Reply::Exhausted { token, attempt, give_ups: 1, last_error: Some("declined".into()) }
}

fn remaining() -> Duration {
    Duration::from_micros(LATER - NOW)
}

fn backing_off() -> Reply {
    Reply::BackingOff { remaining: remaining(), attempt: 1 }
}

fn same_grant() -> Reply {
    Reply::Acquired { token: token(TOKEN), attempt: 1, steps: None }
}

fn duplicate() -> Reply {
    let reply = Some(Bytes::from_static(b"receipt"));
    Reply::Duplicate { reply, attempt: 1, completed_at: time(EARLIER), details: None }
}

fn given_up() -> Reply {
    Reply::AlreadyGivenUp { attempt: MAX, reason: Some("declined".into()) }
}

#[test]
fn acquire_matches_table() {
    let before = |name| {
        let found = situations().into_iter().find(|situation| situation.0 == name);
        found.and_then(|situation| situation.1).expect("a situation with an entry")
    };
    let raised = |name| Becomes(Draft { at: NOW + TTL, ..before(name) });
    let grant = |name| Becomes(granted(before(name)));
    let give_up = |name| Becomes(giving_up(before(name)));
    let settled = || Reply::Settled(State::Retrying);
    check(
        &acquire(),
        &[
            ("absent", Becomes(first_grant()), acquired(1)),
            ("P mine, live", raised("P mine, live"), same_grant()),
            ("P mine, expired", raised("P mine, expired"), same_grant()),
            ("P mine, giving up", raised("P mine, giving up"), exhausted(TOKEN, MAX)),
            ("P other, live", Same, Reply::Locked { remaining: remaining() }),
            ("P other, expired", grant("P other, expired"), acquired(2)),
            ("R mine, waiting", Same, settled()),
            ("R mine, due", Same, settled()),
            ("R mine, released", Same, settled()),
            ("R other, waiting", Same, backing_off()),
            ("R other, due", grant("R other, due"), acquired(2)),
            ("R other, released", grant("R other, released"), acquired(1)),
            (
                "R other, permanent failure",
                give_up("R other, permanent failure"),
                exhausted(NOW, 1),
            ),
            ("R other, exhausted", give_up("R other, exhausted"), exhausted(NOW, MAX)),
            ("R reopened", grant("R reopened"), acquired(1)),
            ("C mine", Same, duplicate()),
            ("C other", Same, duplicate()),
            ("F mine", Same, given_up()),
            ("F other", Same, given_up()),
        ],
    );
}

#[test]
fn acquire_of_expired_give_up_lock_counts_give_up() {
    let before = Draft { owner: OTHER, at: NOW, ..p_giving_up() };
    let after = Draft { give_ups: 2, token: NOW, owner: ME, at: NOW + TTL, ..before.clone() };
    let last_error = Some("declined".into());
    let reply = Reply::Exhausted { token: token(NOW), attempt: MAX, give_ups: 2, last_error };
    check_one("P other, giving up, expired", Some(before), &acquire(), (Some(after), reply));
}

#[test]
fn acquire_with_unlimited_attempts_is_never_exhausted() {
    let unlimited = Operation::Acquire {
        owner: owner(ME),
        ttl: Duration::from_micros(TTL),
        max_attempts: 0,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    };
    let before = Draft { owner: OTHER, at: EARLIER, attempt: 999, ..r() };
    let after = granted(before.clone());
    check_one("R other, tried often", Some(before), &unlimited, (Some(after), acquired(1000)));
}

#[test]
fn lock_can_be_acquired_at_the_instant_it_expires() {
    let live = Draft { owner: OTHER, at: NOW + 1, ..Draft::new(State::Processing, 0) };
    let locked = Reply::Locked { remaining: Duration::from_micros(1) };
    check_one("P other, 1 µs left", Some(live.clone()), &acquire(), (Some(live.clone()), locked));
    let expired = Draft { at: NOW, ..live };
    let after = granted(expired.clone());
    check_one("P other, ends now", Some(expired), &acquire(), (Some(after), acquired(2)));
}

#[test]
fn acquire_with_other_fingerprint_mismatches_tried_key() {
    let other_payload = Operation::Acquire {
        owner: owner(ME),
        ttl: Duration::from_micros(TTL),
        max_attempts: MAX,
        fingerprint: Some(fingerprint(2)),
        floor: FencingToken::ZERO,
        details: None,
    };
    for (name, draft) in situations() {
        let Some(draft) = draft else { continue };
        let before = Draft { fingerprint: 1, ..draft };
        let tried = before.attempt > 0;
        let expected = if tried {
            (before.clone(), Reply::Mismatch)
        } else if before.owner == ME {
            (before.clone(), Reply::Settled(State::Retrying))
        } else {
            (Draft { fingerprint: 2, ..granted(before.clone()) }, acquired(1))
        };
        check_one(name, Some(before), &other_payload, (Some(expected.0), expected.1));
    }
}
