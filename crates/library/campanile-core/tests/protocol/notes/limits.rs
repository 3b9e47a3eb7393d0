//! Nothing overflows: durations, counters, texts and clocks.

use std::time::{Duration, SystemTime};

use campanile_core::{Entry, Operation, Reply, State, step};

use super::{Acquire, TTL, assert_step, assert_step_at};
use crate::draft::{DAY, Draft, HOUR, ME, NOW, OTHER, SECOND, my_grant, time, token};

fn held() -> Draft {
    Draft::new(State::Processing, NOW)
}

#[test]
fn lock_ttl_is_capped_at_one_hour() {
    let acquire = Acquire { ttl: Duration::MAX, ..Acquire::PLAIN }.operation();
    let (entry, _) = step(None, &acquire, time(NOW));
    assert_eq!(entry.map(|entry| entry.at()), Some(time(NOW + HOUR)));
    let renew = Operation::Renew { grant: my_grant(), ttl: Duration::MAX };
    let after = Draft { at: NOW + HOUR, ..held() };
    assert_step(Some(held()), &renew, Some(after), Reply::Renewed);
}

#[test]
fn backoff_is_capped_at_one_day() {
    let delay = Duration::MAX;
    let fail = Operation::Fail { grant: my_grant(), delay, last: false, error: "".into() };
    let after = Draft::new(State::Retrying, NOW + DAY);
    assert_step(Some(held()), &fail, Some(after), Reply::Retrying);
}

#[test]
fn durations_are_truncated_to_microseconds() {
    let renew = Operation::Renew { grant: my_grant(), ttl: Duration::from_nanos(2_999) };
    let after = Draft { at: NOW + 2, ..held() };
    assert_step(Some(held()), &renew, Some(after), Reply::Renewed);
}

#[test]
fn grant_succeeds_with_saturated_attempt_counter() {
    let before = Draft { owner: OTHER, attempt: u16::MAX, ..held() };
    let after = Draft { owner: ME, token: NOW, at: NOW + TTL, ..before.clone() };
    let unlimited = Acquire { max_attempts: 0, ..Acquire::PLAIN }.operation();
    let reply = Reply::Acquired { token: token(NOW), attempt: u16::MAX, steps: None };
    assert_step(Some(before), &unlimited, Some(after), reply);
}

#[test]
fn release_with_zero_attempts_stays_at_zero() {
    for ran in [false, true] {
        let before = Draft { attempt: 0, ..held() };
        let (after, reply) =
            step(Some(before.entry()), &Operation::Release { grant: my_grant(), ran }, time(NOW));
        assert_eq!((after.map(|entry| entry.attempt()), reply), (Some(0), Reply::Released));
    }
}

#[test]
fn give_up_counter_saturates_at_255() {
    let before = Draft { owner: OTHER, giving_up: true, give_ups: 255, attempt: 3, ..held() };
    let after = Draft { owner: ME, token: NOW, at: NOW + TTL, ..before.clone() };
    let reply = Reply::Exhausted { token: token(NOW), attempt: 3, give_ups: 255, last_error: None };
    assert_step(Some(before), &Acquire::PLAIN.operation(), Some(after), reply);
}

#[test]
fn error_is_truncated_to_512_bytes_at_character_boundary() {
    let long = format!("{}é and more", "x".repeat(511));
    let kept = "x".repeat(511);
    assert_eq!(Entry::kept_error(&long), kept);
    let give_up = Operation::GiveUp { grant: my_grant(), reason: long.into() };
    let after = Draft::new(State::Failed, NOW).with_error(&kept);
    assert_step(Some(held()), &give_up, Some(after), Reply::GivenUp);
    let whole = "y".repeat(512);
    assert_eq!(Entry::kept_error(&whole), whole);
}

#[test]
fn clock_is_truncated_to_microseconds() {
    let now = time(NOW) + Duration::from_nanos(999);
    let fail =
        Operation::Fail { grant: my_grant(), delay: Duration::ZERO, last: false, error: "".into() };
    let after = Draft::new(State::Retrying, NOW);
    assert_step_at(now, Some(held()), &fail, Some(after), Reply::Retrying);
    // One nanosecond before its end, the lock has not expired, and a whole microsecond is reported.
    let live = Draft { owner: OTHER, at: NOW + 1, ..held() };
    let reply = Reply::Locked { remaining: Duration::from_micros(1) };
    assert_step_at(now, Some(live.clone()), &Acquire::PLAIN.operation(), Some(live), reply);
}

#[test]
fn clock_before_1970_is_treated_as_1970() {
    let before_1970 = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    let after = Draft { attempt: 1, token: 1, created: 0, ..Draft::new(State::Processing, TTL) };
    let reply = Reply::Acquired { token: token(1), attempt: 1, steps: None };
    assert_step_at(before_1970, None, &Acquire::PLAIN.operation(), Some(after), reply);
}

#[test]
fn clock_beyond_token_range_grants_nothing_but_settles() {
    let far = time((1 << 53) + 5);
    assert_step_at(far, None, &Acquire::PLAIN.operation(), None, Reply::Corrupt);
    let give_up = Operation::GiveUp { grant: my_grant(), reason: "".into() };
    let after = Draft::new(State::Failed, (1 << 53) + 5);
    assert_step_at(far, Some(held()), &give_up, Some(after), Reply::GivenUp);
}

#[test]
fn maximum_clock_does_not_overflow() {
    let end = (0..63).rev().fold(SystemTime::UNIX_EPOCH, |time, bit| {
        time.checked_add(Duration::from_secs(1 << bit)).unwrap_or(time)
    });
    let renew = Operation::Renew { grant: my_grant(), ttl: Duration::MAX };
    let after = Draft { at: u64::MAX, ..held() };
    assert_step_at(end, Some(held()), &renew, Some(after), Reply::Renewed);
    let complete = Operation::Complete {
        grant: my_grant(),
        attempt: 1,
        fingerprint: None,
        reply: None,
        details: None,
    };
    let created = (u64::MAX / SECOND) as u32; // only the low 32 bits are kept
    let adopted = Draft { created, ..Draft::new(State::Completed, u64::MAX) };
    assert_step_at(end, None, &complete, Some(adopted), Reply::Completed);
}

#[test]
fn times_beyond_any_clock_saturate() {
    let absurd = Draft { created: u32::MAX, ..Draft::new(State::Completed, u64::MAX) }.entry();
    assert!(absurd.at() > time(10_000 * 365 * DAY));
    assert_eq!(absurd.created(), time(u64::from(u32::MAX) * SECOND));
}
