//! Bugs in a single operation on a single entry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use campanile_core::{
    Answer, Command, Entry, FencingToken, Fingerprint, Grant, Operation, Reply, State, StoreKey,
    step,
};
use campanile_idempotency::{Store, StoreError};
use campanile_test::{TestClock, contract};

use super::{DIFFERENTIAL, assert_violates};

/// A buggy implementation of one operation on one entry.
type Step = fn(Option<Entry>, &Operation, SystemTime) -> (Option<Entry>, Reply);

/// The memory store with another `step`.
#[derive(Clone)]
struct Broken {
    clock: TestClock,
    entries: Arc<Mutex<HashMap<StoreKey, (Entry, SystemTime)>>>,
    step: Step,
}

impl Store for Broken {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let now = self.clock.now();
        let mut entries = self.entries.lock().unwrap();
        let kept = entries.get(&command.key);
        let before = kept.filter(|(_, until)| now < *until);
        let before = before.map(|(entry, _)| entry.clone());
        let (after, reply) = (self.step)(before.clone(), &command.operation, now);
        if before != after {
            let keep = |entry: Entry| {
                let until = now + command.retention.of(entry.state());
                (entry, until)
            };
            match after {
                Some(entry) => drop(entries.insert(command.key, keep(entry))),
                None => drop(entries.remove(&command.key)),
            }
        }
        Ok(Answer::new(now, reply))
    }
}

async fn assert_step_violates(step: Step, promises: &[&str]) {
    let clock = TestClock::new();
    let store = Broken { clock: clock.clone(), entries: Arc::default(), step };
    assert_violates(&store, &clock, promises).await;
}

/// Modifies the stored bytes of an entry.
fn edit(entry: Entry, change: impl FnOnce(&mut Vec<u8>)) -> Entry {
    let mut bytes = entry.to_bytes().to_vec();
    change(&mut bytes);
    Entry::from_bytes(&bytes).unwrap()
}

/// Extracts the grant that a command names.
fn grant(operation: &Operation) -> Option<Grant> {
    match *operation {
        Operation::Renew { grant, .. }
        | Operation::Complete { grant, .. }
        | Operation::Fail { grant, .. }
        | Operation::Release { grant, .. }
        | Operation::RecordStep { grant, .. }
        | Operation::GiveUp { grant, .. } => Some(grant),
        _ => None,
    }
}

fn with_grant(operation: &Operation, other: Grant) -> Operation {
    let mut operation = operation.clone();
    match &mut operation {
        Operation::Renew { grant, .. }
        | Operation::Complete { grant, .. }
        | Operation::Fail { grant, .. }
        | Operation::Release { grant, .. }
        | Operation::RecordStep { grant, .. }
        | Operation::GiveUp { grant, .. } => *grant = other,
        _ => {}
    }
    operation
}

#[tokio::test(start_paused = true)]
async fn correct_step_has_no_violations() {
    let clock = TestClock::new();
    let store = Broken { clock: clock.clone(), entries: Arc::default(), step };
    assert_eq!(contract::violations(&store, &clock).await, []);
}

#[tokio::test(start_paused = true)]
async fn settling_for_any_grant_is_detected() {
    let unconditional: Step = |before, operation, now| match (&before, grant(operation)) {
        (Some(entry), Some(_)) => {
            let token = entry.token();
            let current_grant = entry.owner().map(|owner| Grant { token, owner });
            let operation = current_grant.map_or(operation.clone(), |it| with_grant(operation, it));
            step(before, &operation, now)
        }
        _ => step(before, operation, now),
    };
    assert_step_violates(
        unconditional,
        &[
            "only_token_and_nonce_together_are_the_grant",
            "a_stale_grant_changes_nothing",
            DIFFERENTIAL,
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn comparing_only_the_owner_is_detected() {
    let owner_only: Step = |before, operation, now| match (&before, grant(operation)) {
        (Some(entry), Some(mut grant)) => {
            grant.token = entry.token();
            step(before, &with_grant(operation, grant), now)
        }
        _ => step(before, operation, now),
    };
    assert_step_violates(owner_only, &["only_token_and_nonce_together_are_the_grant"]).await;
}

#[tokio::test(start_paused = true)]
async fn comparing_only_the_token_is_detected() {
    let token_only: Step = |before, operation, now| match (&before, grant(operation)) {
        (Some(entry), Some(mut grant)) => {
            grant.owner = entry.owner().unwrap_or(grant.owner);
            step(before, &with_grant(operation, grant), now)
        }
        _ => step(before, operation, now),
    };
    assert_step_violates(token_only, &["only_token_and_nonce_together_are_the_grant"]).await;
}

#[tokio::test(start_paused = true)]
async fn completing_without_fingerprint_is_detected() {
    let drops_fingerprint: Step = |before, operation, now| {
        let (after, reply) = step(before, operation, now);
        let after = after.map(|entry| match operation {
            Operation::Complete { .. } => edit(entry, |bytes| bytes[24..32].fill(0)),
            _ => entry,
        });
        (after, reply)
    };
    assert_step_violates(drops_fingerprint, &["another_payload_is_a_mismatch_in_every_state"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn counting_attempts_at_failure_is_detected() {
    let at_failure: Step = |before, operation, now| {
        let count = |by: i32| {
            move |entry: Entry| {
                let attempt = i32::from(entry.attempt()) + by;
                let attempt = u16::try_from(attempt.max(0)).unwrap();
                edit(entry, |bytes| bytes[2..4].copy_from_slice(&attempt.to_be_bytes()))
            }
        };
        let was_granted = before.as_ref().map(Entry::token);
        let (after, reply) = step(before, operation, now);
        match (operation, &reply) {
            (Operation::Acquire { .. }, Reply::Acquired { .. })
                if after.as_ref().map(Entry::token) != was_granted =>
            {
                (after.map(count(-1)), reply)
            }
            (Operation::Fail { .. }, Reply::Retrying) => (after.map(count(1)), reply),
            _ => (after, reply),
        }
    };
    assert_step_violates(at_failure, &["an_attempt_is_counted_when_it_is_granted"]).await;
}

#[tokio::test(start_paused = true)]
async fn regranting_a_repeated_acquire_is_detected() {
    let regrants: Step = |before, operation, now| match operation {
        Operation::Acquire { owner, .. }
            if before.as_ref().is_some_and(|entry| {
                entry.state() == State::Processing && entry.owner() == Some(*owner)
            }) =>
        {
            let expired = before.map(|entry| {
                edit(entry, |bytes| {
                    bytes[16..24].fill(9);
                    bytes[36..44].fill(0);
                })
            });
            step(expired, operation, now)
        }
        _ => step(before, operation, now),
    };
    assert_step_violates(
        regrants,
        &["acquire_repeated_in_every_situation", "an_attempt_is_counted_when_it_is_granted"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn expiring_the_entry_with_its_lock_is_detected() {
    let expires_entry: Step = |before, operation, now| {
        let is_expired = |entry: &Entry| entry.state() == State::Processing && entry.at() <= now;
        step(before.filter(|entry| !is_expired(entry)), operation, now)
    };
    assert_step_violates(
        expires_entry,
        &["an_attempt_is_counted_when_it_is_granted", "renew_in_every_situation"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn releasing_by_deletion_is_detected() {
    let deletes_entry: Step = |before, operation, now| {
        let (after, reply) = step(before, operation, now);
        (after.filter(|_| reply != Reply::Released), reply)
    };
    assert_step_violates(
        deletes_entry,
        &[
            "release_of_what_ran_in_every_situation",
            "cancel_in_every_situation",
            "attempts_that_ran_are_handed_back_eight_times",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn returning_attempts_without_limit_is_detected() {
    let never_interrupts: Step = |before, operation, now| match *operation {
        Operation::Release { grant, .. } => {
            step(before, &Operation::Release { grant, ran: false }, now)
        }
        _ => step(before, operation, now),
    };
    assert_step_violates(never_interrupts, &["attempts_that_ran_are_handed_back_eight_times"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn shortening_the_lock_on_renewal_is_detected() {
    let shortens_lock: Step = |before, operation, now| {
        let (after, reply) = step(before, operation, now);
        match (operation, &reply) {
            (Operation::Renew { ttl, .. }, Reply::Renewed) => {
                let end = (now + *ttl).duration_since(SystemTime::UNIX_EPOCH).unwrap();
                let end = u64::try_from(end.as_micros()).unwrap().to_be_bytes();
                let set = |entry| edit(entry, |bytes| bytes[36..44].copy_from_slice(&end));
                (after.map(set), reply)
            }
            _ => (after, reply),
        }
    };
    assert_step_violates(shortens_lock, &["a_renewal_never_shortens_the_lock"]).await;
}

#[tokio::test(start_paused = true)]
async fn moving_next_attempt_on_repeated_failure_is_detected() {
    let moves_attempt: Step = |before, operation, now| match operation {
        Operation::Fail { .. } => {
            let again = |entry: Entry| match entry.state() {
                State::Retrying if !entry.is_released() => edit(entry, |bytes| bytes[1] = 1),
                _ => entry,
            };
            step(before.map(again), operation, now)
        }
        _ => step(before, operation, now),
    };
    assert_step_violates(moves_attempt, &["a_repeated_failure_does_not_move_the_next_attempt"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn ignoring_the_token_floor_is_detected() {
    let no_floor: Step = |before, operation, now| {
        let mut operation = operation.clone();
        if let Operation::Acquire { floor, .. } = &mut operation {
            *floor = FencingToken::ZERO;
        }
        step(before, &operation, now)
    };
    assert_step_violates(no_floor, &["no_token_is_below_the_floor"]).await;
}

#[tokio::test(start_paused = true)]
async fn ignoring_the_attempt_limit_is_detected() {
    let without_limit: Step = |before, operation, now| {
        let mut operation = operation.clone();
        if let Operation::Acquire { max_attempts, .. } = &mut operation {
            *max_attempts = 0;
        }
        step(before, &operation, now)
    };
    assert_step_violates(
        without_limit,
        &[
            "a_key_that_is_not_interrupted_runs_out_of_attempts",
            "acquire_by_another_in_every_situation",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn refusing_completion_of_absent_entry_is_detected() {
    let refuses_absent: Step = |before, operation, now| match (&before, operation) {
        (None, Operation::Complete { .. }) => (None, Reply::Lost),
        _ => step(before, operation, now),
    };
    assert_step_violates(
        refuses_absent,
        &["complete_in_every_situation", "an_absent_entry_has_no_grant"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn dropping_empty_replies_is_detected() {
    let drops_empty_reply: Step = |before, operation, now| {
        let mut operation = operation.clone();
        if let Operation::Complete { reply, .. } = &mut operation {
            *reply = reply.take().filter(|bytes| !bytes.is_empty());
        }
        step(before, &operation, now)
    };
    assert_step_violates(drops_empty_reply, &["a_reply_comes_back_byte_for_byte"]).await;
}

#[tokio::test(start_paused = true)]
async fn ignoring_fingerprints_is_detected() {
    let ignores_fingerprints: Step = |before, operation, now| {
        let mut operation = operation.clone();
        if let Operation::Acquire { fingerprint, .. } = &mut operation {
            *fingerprint = None::<Fingerprint>;
        }
        step(before, &operation, now)
    };
    assert_step_violates(ignores_fingerprints, &["another_payload_is_a_mismatch_in_every_state"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn dropping_steps_is_detected() {
    let drops_steps_of_failures: Step = |before, operation, now| {
        let (after, reply) = step(before, operation, now);
        match operation {
            Operation::Fail { .. } => {
                let entry = after.map(|entry| match entry.steps() {
                    Some(steps) => {
                        let (kind, end) =
                            (48 + steps.as_bytes().len(), 49 + steps.as_bytes().len());
                        edit(entry, |bytes| {
                            bytes[6] = bytes[kind];
                            bytes.drain(44..end);
                        })
                    }
                    None => entry,
                });
                (entry, reply)
            }
            _ => (after, reply),
        }
    };
    assert_step_violates(
        drops_steps_of_failures,
        &["a_step_is_kept_until_its_key_is_completed", "the_first_result_of_a_step_is_kept"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn recording_nothing_is_detected() {
    let records_nothing: Step = |before, operation, now| match operation {
        Operation::RecordStep { .. } => {
            let (_, reply) = step(before.clone(), operation, now);
            (before, reply)
        }
        _ => step(before, operation, now),
    };
    assert_step_violates(
        records_nothing,
        &[
            "a_step_is_kept_until_its_key_is_completed",
            "the_first_result_of_a_step_is_kept",
            "a_step_beyond_the_limits_is_refused",
            DIFFERENTIAL,
        ],
    )
    .await;
}
