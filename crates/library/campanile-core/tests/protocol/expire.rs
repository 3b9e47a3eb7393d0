//! `expire`, by which an operator changes when an entry expires.

use std::time::Duration;

use campanile_core::{ExpireOutcome, State, expire};

use crate::draft::{Draft, NOW, OTHER, SECOND, TOKEN, time};

const MINUTE: Duration = Duration::from_secs(60);

fn check(current: Option<&Draft>, read: &Draft, after: Duration, expected: ExpireOutcome) {
    let entry = current.map(Draft::entry);
    let outcome = expire(entry.as_ref(), &read.entry(), after, time(NOW));
    assert_eq!(outcome, expected, "{current:?}, read as {read:?}, after {after:?}");
}

#[test]
fn only_entry_that_was_read_expires() {
    let read = Draft::new(State::Failed, NOW);
    check(Some(&read), &read, MINUTE, ExpireOutcome::Done);
    check(None, &read, MINUTE, ExpireOutcome::Changed);
    for current in [
        Draft { state: State::Completed, ..read.clone() },
        Draft { token: TOKEN - 1, ..read.clone() },
        Draft { owner: OTHER, ..read.clone() },
        Draft { at: NOW - 1, ..read.clone() },
    ] {
        check(Some(&current), &read, MINUTE, ExpireOutcome::Changed);
    }
}

#[test]
fn live_lock_is_kept_and_backoff_is_not() {
    for (state, at, expected) in [
        (State::Processing, NOW + 1, ExpireOutcome::Kept),
        (State::Processing, NOW, ExpireOutcome::Done),
        (State::Retrying, NOW + 20 * SECOND, ExpireOutcome::Done),
    ] {
        let read = Draft::new(state, at);
        check(Some(&read), &read, MINUTE, expected);
    }
}

#[test]
fn entry_is_kept_for_a_minute_after_its_last_grant() {
    let granted = Duration::from_micros(NOW - TOKEN);
    let read = Draft::new(State::Failed, NOW);
    check(Some(&read), &read, MINUTE - granted, ExpireOutcome::Done);
    let sooner = MINUTE - granted - Duration::from_micros(1);
    check(Some(&read), &read, sooner, ExpireOutcome::Kept);
}
