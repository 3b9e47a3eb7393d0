//! Only the store's clock decides, and none of its jumps blocks a key forever.

use std::time::{Duration, SystemTime};

use campanile_core::{Entry, Grant, Operation, Reply, State, step as run};
use proptest::prelude::*;

use crate::arbitrary;
use crate::check::check;
use crate::draft::{HOUR, SECOND, time, token};
use crate::step_properties::Step;

/// Holds for any times in the entry and after any clock jump.
#[test]
fn acquire_after_reported_wait_is_granted() {
    check(3000, &arbitrary::steps(), |step| {
        let (Reply::Locked { remaining } | Reply::BackingOff { remaining, .. }) = step.reply else {
            return Ok(());
        };
        let (_, reply) = run(step.after, &step.operation, time(step.now) + remaining);
        let is_granted = matches!(
            reply,
            // Corrupt: the pools include the largest token, and no new token can exceed it.
            Reply::Acquired { .. } | Reply::Exhausted { .. } | Reply::Corrupt
        );
        prop_assert!(is_granted, "{reply:?} after {remaining:?}");
        Ok(())
    });
}

/// Times are truncated to whole microseconds.
#[test]
fn fraction_of_a_microsecond_has_no_effect() {
    check(2000, &arbitrary::steps(), |step| {
        let now = time(step.now) + Duration::from_nanos(999);
        let again = run(step.before, &step.operation, now);
        prop_assert_eq!(again, (step.after, step.reply));
        Ok(())
    });
}

/// Shifting the entry and the clock by the same span changes nothing: a decision depends only on
/// the entry's times relative to the clock.
#[test]
fn shifting_entry_and_clock_together_changes_nothing() {
    check(2000, &arbitrary::steps(), |step| {
        let in_range = |at: SystemTime| at > time(2 * HOUR) && at < time(1 << 52);
        let entries = [&step.before, &step.after];
        let all_in_range = entries.into_iter().flatten().all(|entry| in_range(entry.at()));
        if step.now < 2 * HOUR || step.now > 1 << 52 || !all_in_range {
            return Ok(());
        }
        let before = step.before.as_ref().map(one_hour_earlier);
        let expected = Step::apply(before, step.operation.clone(), step.now - HOUR);
        prop_assert_eq!(
            expected.after.map(without_token),
            step.after.as_ref().map(one_hour_earlier).map(without_token)
        );
        prop_assert_eq!(
            without_token_and_time(&expected.reply),
            without_token_and_time(&step.reply)
        );
        Ok(())
    });
}

/// The entry with its times an hour earlier.
fn one_hour_earlier(entry: &Entry) -> Entry {
    let mut bytes = entry.to_bytes().to_vec();
    let created = entry.created().duration_since(time(HOUR)).expect("in range");
    let at = entry.at().duration_since(time(HOUR)).expect("in range");
    bytes[32..36].copy_from_slice(&(created.as_secs() as u32).to_be_bytes());
    bytes[36..44].copy_from_slice(&(at.as_micros() as u64).to_be_bytes());
    Entry::from_bytes(&bytes).expect("only times were changed")
}

/// The stored bytes with the token cleared, because the token follows the clock.
fn without_token(entry: Entry) -> Vec<u8> {
    let mut bytes = entry.to_bytes().to_vec();
    bytes[8..16].fill(0);
    bytes
}

/// The reply with its token and completion time cleared.
fn without_token_and_time(reply: &Reply) -> Reply {
    let mut reply = reply.clone();
    match &mut reply {
        Reply::Acquired { token: value, .. } | Reply::Exhausted { token: value, .. } => {
            *value = token(0)
        }
        Reply::Duplicate { completed_at, .. } => *completed_at = SystemTime::UNIX_EPOCH,
        _ => {}
    }
    reply
}

/// The clock jumps ahead by at least the lock's TTL: the holder still counts on its lock by its own
/// clock, but for the store the lock has expired. The remaining guarantee is that the old holder
/// changes nothing.
#[test]
fn clock_jump_ahead_expires_lock_and_old_holder_changes_nothing() {
    use crate::draft::{ME, NOW, OTHER, owner};
    const TTL: u64 = 30 * SECOND;
    let acquire = |who| Operation::Acquire {
        owner: owner(who),
        ttl: Duration::from_micros(TTL),
        max_attempts: 3,
        fingerprint: None,
        floor: token(0),
        details: None,
    };
    let (held, reply) = run(None, &acquire(ME), time(NOW));
    let Reply::Acquired { token: first, attempt: 1, .. } = reply else { panic!("{reply:?}") };
    // A smaller jump shortens the lock.
    let (_, reply) = run(held.clone(), &acquire(OTHER), time(NOW + TTL - SECOND));
    assert_eq!(reply, Reply::Locked { remaining: Duration::from_micros(SECOND) });

    let (taken, reply) = run(held, &acquire(OTHER), time(NOW + TTL));
    let Reply::Acquired { token: second, attempt: 2, .. } = reply else { panic!("{reply:?}") };
    assert!(second > first, "{second:?} after {first:?}");
    let grant = Grant { token: first, owner: owner(ME) };
    let complete =
        Operation::Complete { grant, attempt: 1, fingerprint: None, reply: None, details: None };
    let renew = Operation::Renew { grant, ttl: Duration::from_micros(TTL) };
    for stale in [complete, renew] {
        let (entry, reply) = run(taken.clone(), &stale, time(NOW + TTL + SECOND));
        assert_eq!((entry, reply), (taken.clone(), Reply::Lost), "{stale:?}");
    }
}

/// The store's clock jumps back by a year while a lock is held.
#[test]
fn clock_jump_back_blocks_key_for_at_most_max_lock_ttl() {
    let held = crate::draft::Draft::new(State::Processing, 0);
    let now = crate::draft::NOW;
    let entry = crate::draft::Draft { at: now + 365 * crate::draft::DAY, ..held }.entry();
    let acquire = Operation::Acquire {
        owner: crate::draft::owner(crate::draft::OTHER),
        ttl: Duration::from_secs(30),
        max_attempts: 3,
        fingerprint: None,
        floor: token(0),
        details: None,
    };
    let (entry, reply) = run(Some(entry), &acquire, time(now));
    assert_eq!(reply, Reply::Locked { remaining: Duration::from_micros(HOUR) });
    let (entry, reply) = run(entry, &acquire, time(now + HOUR - SECOND));
    assert_eq!(reply, Reply::Locked { remaining: Duration::from_micros(SECOND) });
    let (_, reply) = run(entry, &acquire, time(now + HOUR));
    assert!(matches!(reply, Reply::Acquired { attempt: 2, .. }), "{reply:?}");
}
