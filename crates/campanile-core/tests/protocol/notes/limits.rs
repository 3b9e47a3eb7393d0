//! Nothing runs over: durations, counters, texts and clocks.

use std::time::{Duration, SystemTime};

use campanile_core::{Entry, Operation, Reply, State, step};

use super::{Acquire, TTL, assert_step, assert_step_at};
use crate::draft::{DAY, Draft, HOUR, ME, NOW, OTHER, SECOND, mine, time, token};

fn held() -> Draft {
    Draft::new(State::Processing, NOW)
}

#[test]
fn a_lock_lives_for_an_hour_at_most() {
    let acquire = Acquire { ttl: Duration::MAX, ..Acquire::PLAIN }.operation();
    let (entry, _) = step(None, &acquire, time(NOW));
    assert_eq!(entry.map(|entry| entry.at()), Some(time(NOW + HOUR)));
    let renew = Operation::Renew { grant: mine(), ttl: Duration::MAX };
    let after = Draft { at: NOW + HOUR, ..held() };
    assert_step(Some(held()), &renew, Some(after), Reply::Renewed);
}

#[test]
fn a_back_off_takes_a_day_at_most() {
    let delay = Duration::MAX;
    let fail = Operation::Fail { grant: mine(), delay, last: false, error: "".into() };
    let after = Draft::new(State::Retrying, NOW + DAY);
    assert_step(Some(held()), &fail, Some(after), Reply::Retrying);
}

#[test]
fn durations_lose_what_is_less_than_a_microsecond() {
    let renew = Operation::Renew { grant: mine(), ttl: Duration::from_nanos(2_999) };
    let after = Draft { at: NOW + 2, ..held() };
    assert_step(Some(held()), &renew, Some(after), Reply::Renewed);
}

#[test]
fn an_attempt_that_cannot_be_counted_is_granted_all_the_same() {
    let before = Draft { owner: OTHER, attempt: u16::MAX, ..held() };
    let after = Draft { owner: ME, token: NOW, at: NOW + TTL, ..before.clone() };
    let unlimited = Acquire { max_attempts: 0, ..Acquire::PLAIN }.operation();
    let reply = Reply::Acquired { token: token(NOW), attempt: u16::MAX };
    assert_step(Some(before), &unlimited, Some(after), reply);
}

#[test]
fn an_attempt_that_was_not_counted_cannot_be_handed_back() {
    for ran in [false, true] {
        let before = Draft { attempt: 0, ..held() };
        let (after, reply) =
            step(Some(before.entry()), &Operation::Release { grant: mine(), ran }, time(NOW));
        assert_eq!((after.map(|entry| entry.attempt()), reply), (Some(0), Reply::Released));
    }
}

#[test]
fn burials_are_counted_up_to_255() {
    let before = Draft { owner: OTHER, burial: true, burials: 255, attempt: 3, ..held() };
    let after = Draft { owner: ME, token: NOW, at: NOW + TTL, ..before.clone() };
    let reply = Reply::Exhausted { token: token(NOW), attempt: 3, burials: 255, last_error: None };
    assert_step(Some(before), &Acquire::PLAIN.operation(), Some(after), reply);
}

#[test]
fn an_error_keeps_512_bytes_and_no_half_character() {
    let long = format!("{}é and more", "x".repeat(511));
    let kept = "x".repeat(511);
    assert_eq!(Entry::kept_error(&long), kept);
    let reject = Operation::Reject { grant: mine(), reason: long.into() };
    let after = Draft::new(State::Failed, NOW).with_error(&kept);
    assert_step(Some(held()), &reject, Some(after), Reply::Rejected);
    let whole = "y".repeat(512);
    assert_eq!(Entry::kept_error(&whole), whole);
}

#[test]
fn the_clock_counts_in_whole_microseconds() {
    let now = time(NOW) + Duration::from_nanos(999);
    let fail =
        Operation::Fail { grant: mine(), delay: Duration::ZERO, last: false, error: "".into() };
    let after = Draft::new(State::Retrying, NOW);
    assert_step_at(now, Some(held()), &fail, Some(after), Reply::Retrying);
    // It has not expired 1 µs earlier, however little of that is left.
    let live = Draft { owner: OTHER, at: NOW + 1, ..held() };
    let reply = Reply::Locked { remaining: Duration::from_micros(1) };
    assert_step_at(now, Some(live.clone()), &Acquire::PLAIN.operation(), Some(live), reply);
}

#[test]
fn a_clock_before_1970_is_taken_as_1970() {
    let before_1970 = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    let after = Draft { attempt: 1, token: 1, created: 0, ..Draft::new(State::Processing, TTL) };
    let reply = Reply::Acquired { token: token(1), attempt: 1 };
    assert_step_at(before_1970, None, &Acquire::PLAIN.operation(), Some(after), reply);
}

#[test]
fn a_clock_beyond_all_tokens_grants_none_and_settles_all_the_same() {
    let far = time((1 << 53) + 5);
    assert_step_at(far, None, &Acquire::PLAIN.operation(), None, Reply::Corrupt);
    let reject = Operation::Reject { grant: mine(), reason: "".into() };
    let after = Draft::new(State::Failed, (1 << 53) + 5);
    assert_step_at(far, Some(held()), &reject, Some(after), Reply::Rejected);
}

#[test]
fn a_clock_at_the_end_of_time_overflows_nothing() {
    let end = (0..63).rev().fold(SystemTime::UNIX_EPOCH, |time, bit| {
        time.checked_add(Duration::from_secs(1 << bit)).unwrap_or(time)
    });
    let renew = Operation::Renew { grant: mine(), ttl: Duration::MAX };
    let after = Draft { at: u64::MAX, ..held() };
    assert_step_at(end, Some(held()), &renew, Some(after), Reply::Renewed);
    let complete =
        Operation::Complete { grant: mine(), attempt: 1, fingerprint: None, reply: None };
    let adopted = Draft { created: u32::MAX, ..Draft::new(State::Completed, u64::MAX) };
    assert_step_at(end, None, &complete, Some(adopted), Reply::Completed);
}

#[test]
fn times_that_no_clock_reaches_are_shown_as_late_as_can_be() {
    let absurd = Draft { created: u32::MAX, ..Draft::new(State::Completed, u64::MAX) }.entry();
    assert!(absurd.at() > time(10_000 * 365 * DAY));
    assert_eq!(absurd.created(), time(u64::from(u32::MAX) * SECOND));
}
