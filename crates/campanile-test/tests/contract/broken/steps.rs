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

use super::{DIFFERENTIAL, caught};

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

async fn step_is_caught(step: Step, promises: &[&str]) {
    let clock = TestClock::new();
    let store = Broken { clock: clock.clone(), entries: Arc::default(), step };
    caught(&store, &clock, promises).await;
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
        | Operation::Reject { grant, .. } => Some(grant),
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
        | Operation::Reject { grant, .. } => *grant = other,
        _ => {}
    }
    operation
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_step_right_is_not_caught() {
    let clock = TestClock::new();
    let store = Broken { clock: clock.clone(), entries: Arc::default(), step };
    assert_eq!(contract::violations(&store, &clock).await, []);
}

#[tokio::test(start_paused = true)]
async fn one_that_settles_for_anybody_is_caught() {
    let unconditional: Step = |before, operation, now| match (&before, grant(operation)) {
        (Some(entry), Some(_)) => {
            let token = entry.token();
            let theirs = entry.owner().map(|owner| Grant { token, owner });
            let operation = theirs.map_or(operation.clone(), |it| with_grant(operation, it));
            step(before, &operation, now)
        }
        _ => step(before, operation, now),
    };
    step_is_caught(
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
async fn one_that_compares_the_owner_alone_is_caught() {
    let owner_only: Step = |before, operation, now| match (&before, grant(operation)) {
        (Some(entry), Some(mut grant)) => {
            grant.token = entry.token();
            step(before, &with_grant(operation, grant), now)
        }
        _ => step(before, operation, now),
    };
    step_is_caught(owner_only, &["only_token_and_nonce_together_are_the_grant"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_compares_the_token_alone_is_caught() {
    let token_only: Step = |before, operation, now| match (&before, grant(operation)) {
        (Some(entry), Some(mut grant)) => {
            grant.owner = entry.owner().unwrap_or(grant.owner);
            step(before, &with_grant(operation, grant), now)
        }
        _ => step(before, operation, now),
    };
    step_is_caught(token_only, &["only_token_and_nonce_together_are_the_grant"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_completes_without_the_fingerprint_is_caught() {
    let forgets: Step = |before, operation, now| {
        let (after, reply) = step(before, operation, now);
        let after = after.map(|entry| match operation {
            Operation::Complete { .. } => edit(entry, |bytes| bytes[24..32].fill(0)),
            _ => entry,
        });
        (after, reply)
    };
    step_is_caught(forgets, &["another_payload_is_a_mismatch_in_every_state"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_counts_attempts_at_the_failure_is_caught() {
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
    step_is_caught(at_failure, &["an_attempt_is_counted_when_it_is_granted"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_grants_a_repeated_acquire_anew_is_caught() {
    let anew: Step = |before, operation, now| match operation {
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
    step_is_caught(
        anew,
        &["acquire_repeated_in_every_situation", "an_attempt_is_counted_when_it_is_granted"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_whose_entry_expires_with_its_lock_is_caught() {
    let expires: Step = |before, operation, now| {
        let is_expired = |entry: &Entry| entry.state() == State::Processing && entry.at() <= now;
        step(before.filter(|entry| !is_expired(entry)), operation, now)
    };
    step_is_caught(
        expires,
        &["an_attempt_is_counted_when_it_is_granted", "renew_in_every_situation"],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_releases_by_deleting_is_caught() {
    let deletes: Step = |before, operation, now| {
        let (after, reply) = step(before, operation, now);
        (after.filter(|_| reply != Reply::Released), reply)
    };
    step_is_caught(
        deletes,
        &[
            "release_of_what_ran_in_every_situation",
            "cancel_in_every_situation",
            "attempts_that_ran_are_handed_back_eight_times",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_hands_attempts_back_for_ever_is_caught() {
    let immortal: Step = |before, operation, now| match *operation {
        Operation::Release { grant, .. } => {
            step(before, &Operation::Release { grant, ran: false }, now)
        }
        _ => step(before, operation, now),
    };
    step_is_caught(immortal, &["attempts_that_ran_are_handed_back_eight_times"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_whose_renewal_sets_the_end_is_caught() {
    let sets: Step = |before, operation, now| {
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
    step_is_caught(sets, &["a_renewal_never_shortens_the_lock"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_lets_a_repeated_failure_push_the_next_attempt_is_caught() {
    let pushes: Step = |before, operation, now| match operation {
        Operation::Fail { .. } => {
            let again = |entry: Entry| match entry.state() {
                State::Retrying if !entry.is_released() => edit(entry, |bytes| bytes[1] = 1),
                _ => entry,
            };
            step(before.map(again), operation, now)
        }
        _ => step(before, operation, now),
    };
    step_is_caught(pushes, &["a_repeated_failure_does_not_move_the_next_attempt"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_without_a_floor_is_caught() {
    let no_floor: Step = |before, operation, now| {
        let mut operation = operation.clone();
        if let Operation::Acquire { floor, .. } = &mut operation {
            *floor = FencingToken::ZERO;
        }
        step(before, &operation, now)
    };
    step_is_caught(no_floor, &["no_token_is_below_the_floor"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_never_gives_up_is_caught() {
    let patient: Step = |before, operation, now| {
        let mut operation = operation.clone();
        if let Operation::Acquire { max_attempts, .. } = &mut operation {
            *max_attempts = 0;
        }
        step(before, &operation, now)
    };
    step_is_caught(
        patient,
        &[
            "a_key_that_is_not_interrupted_runs_out_of_attempts",
            "acquire_by_another_in_every_situation",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_adopt_a_completion_is_caught() {
    let strict: Step = |before, operation, now| match (&before, operation) {
        (None, Operation::Complete { .. }) => (None, Reply::Lost),
        _ => step(before, operation, now),
    };
    step_is_caught(strict, &["complete_in_every_situation", "an_absent_entry_has_no_grant"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_empty_replies_for_none_is_caught() {
    let drops: Step = |before, operation, now| {
        let mut operation = operation.clone();
        if let Operation::Complete { reply, .. } = &mut operation {
            *reply = reply.take().filter(|bytes| !bytes.is_empty());
        }
        step(before, &operation, now)
    };
    step_is_caught(drops, &["a_reply_comes_back_byte_for_byte"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_compares_no_payloads_is_caught() {
    let blind: Step = |before, operation, now| {
        let mut operation = operation.clone();
        if let Operation::Acquire { fingerprint, .. } = &mut operation {
            *fingerprint = None::<Fingerprint>;
        }
        step(before, &operation, now)
    };
    step_is_caught(blind, &["another_payload_is_a_mismatch_in_every_state"]).await;
}
