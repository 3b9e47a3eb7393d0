//! What a grant sets, keeps and clears.

use campanile_core::{Reply, State};

use super::{Acquire, TTL, assert_step};
use crate::draft::{Draft, ME, NOW, OTHER, SECOND, fingerprint, token};

const LIMIT: u64 = 1 << 53;

fn due() -> Draft {
    Draft { owner: OTHER, ..Draft::new(State::Retrying, NOW) }
}

fn granted(token: u64, before: Draft) -> Draft {
    let attempt = before.attempt + 1;
    Draft { state: State::Processing, attempt, token, owner: ME, at: NOW + TTL, ..before }
}

fn acquired(value: u64, attempt: u16) -> Reply {
    Reply::Acquired { token: token(value), attempt, steps: None }
}

#[test]
fn token_is_clock_time_if_clock_is_ahead() {
    let after = granted(NOW, due());
    assert_step(Some(due()), &Acquire::PLAIN.operation(), Some(after), acquired(NOW, 2));
}

#[test]
fn token_exceeds_previous_if_clock_is_behind() {
    for previous in [NOW, NOW + 5] {
        let before = Draft { token: previous, ..due() };
        let after = granted(previous + 1, before.clone());
        let reply = acquired(previous + 1, 2);
        assert_step(Some(before), &Acquire::PLAIN.operation(), Some(after), reply);
    }
}

#[test]
fn token_exceeds_floor() {
    let floor = token(NOW + 7 * SECOND);
    let acquire = Acquire { floor, ..Acquire::PLAIN }.operation();
    let value = floor.get() + 1;
    let after = granted(value, due());
    assert_step(Some(due()), &acquire, Some(after), acquired(value, 2));

    let first = Draft { attempt: 0, created: (NOW / SECOND) as u32, ..due() };
    assert_step(None, &acquire, Some(granted(value, first)), acquired(value, 1));
}

#[test]
fn last_token_below_limit_is_granted() {
    let before = Draft { token: LIMIT - 2, ..due() };
    let after = granted(LIMIT - 1, before.clone());
    let reply = acquired(LIMIT - 1, 2);
    assert_step(Some(before), &Acquire::PLAIN.operation(), Some(after), reply);
}

#[test]
fn token_at_limit_is_not_granted_and_nothing_is_written() {
    let no_token_left = Draft { token: LIMIT - 1, ..due() };
    let expired = Draft { state: State::Processing, ..no_token_left.clone() };
    for before in [no_token_left, expired] {
        let operation = Acquire::PLAIN.operation();
        assert_step(Some(before.clone()), &operation, Some(before), Reply::Corrupt);
    }
    let absurd_floor = || Acquire { floor: token(LIMIT - 1), ..Acquire::PLAIN }.operation();
    assert_step(None, &absurd_floor(), None, Reply::Corrupt);
    assert_step(Some(due()), &absurd_floor(), Some(due()), Reply::Corrupt);
}

#[test]
fn grant_keeps_tail_and_fingerprint_and_clears_release() {
    let before = Draft { released: true, fingerprint: 5, ..due() }.with_error("declined");
    let after = Draft { released: false, ..granted(NOW, before.clone()) };
    assert_step(Some(before), &Acquire::PLAIN.operation(), Some(after), acquired(NOW, 2));
}

#[test]
fn grant_stores_fingerprint_of_command() {
    let acquire = Acquire { fingerprint: Some(fingerprint(6)), ..Acquire::PLAIN }.operation();
    let after = Draft { fingerprint: 6, ..granted(NOW, due()) };
    assert_step(Some(due()), &acquire, Some(after), acquired(NOW, 2));
}

#[test]
fn takeover_keeps_fingerprint_unless_command_has_one() {
    for (stored, asked, kept) in [(5, None, 5), (0, Some(fingerprint(6)), 6)] {
        let before = Draft { state: State::Processing, fingerprint: stored, ..due() };
        let acquire = Acquire { fingerprint: asked, ..Acquire::PLAIN }.operation();
        let after = Draft { fingerprint: kept, ..granted(NOW, before.clone()) };
        assert_step(Some(before), &acquire, Some(after), acquired(NOW, 2));
    }
}

#[test]
fn permanent_failure_gets_give_up_lock_with_unlimited_attempts() {
    let before = Draft { permanent_failure: true, ..due() }.with_error("declined");
    let after = Draft { giving_up: true, give_ups: 1, attempt: 1, ..granted(NOW, before.clone()) };
    let unlimited = Acquire { max_attempts: 0, ..Acquire::PLAIN }.operation();
    let last_error = Some("declined".into());
    let reply = Reply::Exhausted { token: token(NOW), attempt: 1, give_ups: 1, last_error };
    assert_step(Some(before), &unlimited, Some(after), reply);
}

#[test]
fn expired_give_up_lock_becomes_normal_lock_with_more_attempts() {
    let before =
        Draft { state: State::Processing, giving_up: true, give_ups: 1, attempt: 3, ..due() };
    let after = Draft { giving_up: false, ..granted(NOW, before.clone()) };
    let more = Acquire { max_attempts: 4, ..Acquire::PLAIN }.operation();
    assert_step(Some(before), &more, Some(after), acquired(NOW, 4));
}
