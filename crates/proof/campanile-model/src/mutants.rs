//! Wrong versions of `step`: each breaks one rule, by changing what `step` gets or what it returns.
//!
//! The explorer has to find a history in which each of them does harm. The replies of a mutant are
//! derived from its entries, as every store derives them.

use std::time::{Duration, SystemTime};

use campanile_core::{Entry, FencingToken, Grant, Operation, Owner, Reply, reply, step};

use crate::compact::{TICK, encoded_step};
use crate::config::{
    ANY_COMMAND, CLOCKS, Config, FAILOVER, FINGERPRINTS, LAST_TOKENS, LIMITS, NO_LIMIT, OPERATOR,
    STEPS, Size, THREE_CLIENTS, TWO_CLIENTS,
};
use crate::explore::explore;
use crate::raw::{COMPLETED, FAILED, NO_TAIL, PROCESSING, RETRYING, Raw};
use crate::rules::{Rule, StepFn};
use crate::story::tell;

/// How many states a search for a mutant visits at most.
const STATES_TO_FIND: usize = 1_000_000;

/// A wrong version of `step`.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What is wrong.
    pub name: &'static str,
    breaks: Breaks,
    /// The name of the configuration in which it is found soonest.
    config: &'static str,
    step: StepFn,
}

/// What kind of rule a mutant breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Breaks {
    /// A rule about histories: clients that follow the protocol come to harm.
    History,
    /// A rule about single steps.
    Step,
}

/// What was found of a mutant.
#[derive(Debug)]
pub struct Found {
    /// The rule that it breaks.
    pub rule: &'static Rule,
    /// How many states were visited until then.
    pub states: usize,
    /// How it breaks the rule.
    pub story: String,
}

impl Mutant {
    /// Searches the shortest history in which the mutant breaks a rule.
    pub fn find(&self) -> Option<Found> {
        let configs = Config::all(Size::Small);
        let config = configs.iter().find(|config| config.name == self.config)?;
        let report = explore(config, self.step, self.breaks == Breaks::Step, STATES_TO_FIND);
        let violation = report.violation?;
        let story = tell(config, self.step, &violation);
        Some(Found { rule: violation.rule, states: report.states, story })
    }
}

type Stepped = (Option<Entry>, Reply);

/// Runs `step` on another entry. If it then changes nothing, the entry stays as it was.
fn with_entry(
    entry: Option<Entry>,
    operation: &Operation,
    now: SystemTime,
    change: impl FnOnce(&mut Raw),
) -> Stepped {
    let changed = entry.as_ref().map(|entry| {
        let mut raw = Raw::of(entry);
        change(&mut raw);
        raw.entry()
    });
    let (after, reply) = step(changed.clone(), operation, now);
    if after == changed { (entry, reply) } else { (after, reply) }
}

/// Runs `step`, and then drops the steps of the entry on a condition.
fn without_steps(
    entry: Option<Entry>,
    operation: &Operation,
    now: SystemTime,
    is_dropped: impl FnOnce(Option<&Raw>, &Raw) -> bool,
) -> Stepped {
    with_result(entry, operation, now, |before, after| {
        if is_dropped(before, after) {
            after.steps.clear();
        }
    })
}

/// Runs `step`, and then changes the result.
fn with_result(
    entry: Option<Entry>,
    operation: &Operation,
    now: SystemTime,
    change: impl FnOnce(Option<&Raw>, &mut Raw),
) -> Stepped {
    let before = entry.as_ref().map(Raw::of);
    let (after, first) = step(entry, operation, now);
    let Some(after) = after else {
        return (None, first);
    };
    let mut raw = Raw::of(&after);
    change(before.as_ref(), &mut raw);
    let after = Some(raw.entry());
    let reply = reply(after.as_ref(), operation, now);
    (after, reply)
}

/// The operation with another grant.
fn with_grant(operation: &Operation, change: impl FnOnce(&mut Grant)) -> Operation {
    let mut operation = operation.clone();
    if let Operation::Renew { grant, .. }
    | Operation::Complete { grant, .. }
    | Operation::Fail { grant, .. }
    | Operation::Release { grant, .. }
    | Operation::RecordStep { grant, .. }
    | Operation::GiveUp { grant, .. } = &mut operation
    {
        change(grant);
    }
    operation
}

/// Runs an acquire with another floor, or another operation as it is.
fn with_floor(entry: Option<Entry>, operation: &Operation, now: SystemTime, to: u64) -> Stepped {
    let mut operation = operation.clone();
    if let Operation::Acquire { floor, .. } = &mut operation {
        *floor = FencingToken::new(to).unwrap_or(*floor);
    }
    step(entry, &operation, now)
}

fn micros(now: SystemTime) -> u64 {
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

fn is_new_grant(before: Option<&Raw>, after: &Raw) -> bool {
    after.state == PROCESSING
        && before.is_none_or(|before| (before.token, before.owner) != (after.token, after.owner))
}

fn state_is(entry: &Option<Entry>, state: u8) -> bool {
    entry.as_ref().is_some_and(|entry| Raw::of(entry).state == state)
}

fn acquires(operation: &Operation) -> bool {
    matches!(operation, Operation::Acquire { .. })
}

fn completes(operation: &Operation) -> bool {
    matches!(operation, Operation::Complete { .. })
}

fn fails(operation: &Operation) -> bool {
    matches!(operation, Operation::Fail { .. })
}

fn releases(operation: &Operation) -> bool {
    matches!(operation, Operation::Release { .. })
}

fn has_no_limit(operation: &Operation) -> bool {
    matches!(operation, Operation::Acquire { max_attempts: 0, .. })
}

fn has_no_fingerprint(operation: &Operation) -> bool {
    matches!(operation, Operation::Acquire { fingerprint: None, .. })
}

fn redrives(operation: &Operation) -> bool {
    matches!(operation, Operation::Redrive { .. })
}

macro_rules! mutants {
    ($($breaks:ident in $config:ident: $name:literal => |$entry:ident, $operation:ident, $now:ident| $body:expr;)*) => {
        &[$(Mutant {
            name: $name,
            breaks: Breaks::$breaks,
            config: $config,
            step: |$entry, $operation, $now| $body,
        }),*]
    };
}

/// All mutants.
pub const MUTANTS: &[Mutant] = mutants! {
    Step in OPERATOR: "the token is not compared" => |entry, operation, now| {
        let operation = with_grant(operation, |grant| {
            if let Some(entry) = &entry && entry.owner() == Some(grant.owner) {
                grant.token = entry.token();
            }
        });
        step(entry, &operation, now)
    };
    History in FAILOVER: "the nonce is not compared" => |entry, operation, now| {
        let operation = with_grant(operation, |grant| {
            if let Some(entry) = &entry && entry.token() == grant.token {
                grant.owner = entry.owner().unwrap_or(grant.owner);
            }
        });
        step(entry, &operation, now)
    };
    History in TWO_CLIENTS: "neither the token nor the nonce is compared" => |entry, operation, now| {
        let operation = with_grant(operation, |grant| {
            if let Some(owner) = entry.as_ref().and_then(Entry::owner) {
                grant.owner = owner;
            }
            grant.token = entry.as_ref().map_or(grant.token, Entry::token);
        });
        step(entry, &operation, now)
    };
    History in TWO_CLIENTS: "a cancel does not compare the nonce" => |entry, operation, now| {
        let owner = entry.as_ref().and_then(Entry::owner);
        match (operation, owner) {
            (Operation::Cancel { .. }, Some(owner)) => step(entry, &Operation::Cancel { owner }, now),
            _ => step(entry, operation, now),
        }
    };
    Step in TWO_CLIENTS: "an expired lock no longer belongs to its grant" => |entry, operation, now| {
        let has_expired = state_is(&entry, PROCESSING)
            && entry.as_ref().is_some_and(|entry| entry.at() <= now);
        let gone = with_grant(operation, |grant| grant.owner = Owner::new(u64::MAX).unwrap_or(grant.owner));
        step(entry, if has_expired { &gone } else { operation }, now)
    };
    History in TWO_CLIENTS: "a live lock is granted to others in its second half" => |entry, operation, now| {
        let is_other = matches!(operation, Operation::Acquire { owner, .. }
            if entry.as_ref().is_some_and(|entry| entry.owner() != Some(*owner)));
        with_entry(entry, operation, now, |entry| {
            if is_other && entry.state == PROCESSING {
                entry.at -= TICK.as_micros() as u64;
            }
        })
    };
    Step in TWO_CLIENTS: "a lock has expired only when now > at" => |entry, operation, now| {
        let now_or_before = match operation {
            Operation::Acquire { .. } if entry.as_ref().is_some_and(|entry| entry.at() == now) => {
                now - Duration::from_micros(1)
            }
            _ => now,
        };
        step(entry, operation, now_or_before)
    };
    Step in TWO_CLIENTS: "a lock that another acquires is taken over without an attempt" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if let Some(before) = before && before.state == PROCESSING && is_new_grant(Some(before), after) {
                after.attempt = before.attempt;
            }
        })
    };
    Step in OPERATOR: "an attempt after a failure is not counted" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if let Some(before) = before && !before.released && before.state == RETRYING
                && is_new_grant(Some(before), after)
            {
                after.attempt = before.attempt;
            }
        })
    };
    Step in TWO_CLIENTS: "a repeated acquire counts another attempt" => |entry, operation, now| {
        let is_repeated = acquires(operation) && state_is(&entry, PROCESSING);
        with_result(entry, operation, now, |before, after| {
            if is_repeated && !is_new_grant(before, after)
                && matches!(operation, Operation::Acquire { owner, .. } if owner.get() == after.owner)
            {
                after.attempt = after.attempt.saturating_add(1);
            }
        })
    };
    History in FAILOVER: "a repeated acquire gets a new token" => |entry, operation, now| {
        let is_repeated = acquires(operation) && state_is(&entry, PROCESSING);
        with_result(entry, operation, now, |before, after| {
            if is_repeated && !is_new_grant(before, after)
                && matches!(operation, Operation::Acquire { owner, .. } if owner.get() == after.owner)
            {
                after.token += 1;
            }
        })
    };
    History in CLOCKS: "an acquire after its own run was failed is granted" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if acquires(operation) && entry.state == RETRYING {
                entry.owner = 31;
            }
        })
    };
    History in FAILOVER: "the floor is ignored" => |entry, operation, now| with_floor(entry, operation, now, 0);
    History in OPERATOR: "the clock is ignored by the token" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            let floor = if let Operation::Acquire { floor, .. } = operation { floor.get() } else { 0 };
            if is_new_grant(before, after) {
                after.token = (before.map_or(0, |before| before.token) + 1).max(floor + 1);
            }
        })
    };
    History in TWO_CLIENTS: "the previous token is ignored" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            let floor = if let Operation::Acquire { floor, .. } = operation { floor.get() } else { 0 };
            if is_new_grant(before, after) {
                after.token = micros(now).max(floor + 1);
            }
        })
    };
    History in LIMITS: "the limit of attempts is ignored" => |entry, operation, now| {
        let mut unlimited = operation.clone();
        if let Operation::Acquire { max_attempts, .. } = &mut unlimited {
            *max_attempts = 0;
        }
        step(entry, &unlimited, now)
    };
    History in LIMITS: "there is one attempt too many" => |entry, operation, now| {
        let mut more = operation.clone();
        if let Operation::Acquire { max_attempts, .. } = &mut more {
            *max_attempts = max_attempts.saturating_add(1);
        }
        step(entry, &more, now)
    };
    Step in NO_LIMIT: "no limit of attempts permits none" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if has_no_limit(operation) && is_new_grant(before, after) && !after.giving_up {
                after.giving_up = true;
                after.attempt = before.map_or(0, |before| before.attempt);
                after.give_ups = after.give_ups.saturating_add(1);
            }
        })
    };
    Step in NO_LIMIT: "attempts without a limit are not counted" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if has_no_limit(operation) && is_new_grant(before, after) {
                after.attempt = before.map_or(0, |before| before.attempt);
            }
        })
    };
    Step in NO_LIMIT: "attempts without a limit overflow" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            let was_at_end = before.is_some_and(|before| before.attempt == u16::MAX);
            if was_at_end && has_no_limit(operation) && is_new_grant(before, after) {
                after.attempt = 0;
            }
        })
    };
    Step in NO_LIMIT: "a permanent failure is retried if attempts have no limit" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if has_no_limit(operation) {
                entry.permanent_failure = false;
            }
        })
    };
    Step in TWO_CLIENTS: "a permanent failure is retried" => |entry, operation, now| {
        let mut retried = operation.clone();
        if let Operation::Fail { last, .. } = &mut retried {
            *last = false;
        }
        step(entry, &retried, now)
    };
    Step in TWO_CLIENTS: "the backoff is ignored" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if acquires(operation) && entry.state == RETRYING {
                entry.at = entry.at.min(micros(now));
            }
        })
    };
    History in THREE_CLIENTS: "a completed key is granted again" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if acquires(operation) && entry.state == COMPLETED {
                entry.state = RETRYING;
            }
        })
    };
    History in TWO_CLIENTS: "a key that was given up is granted again" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if acquires(operation) && entry.state == FAILED {
                entry.state = RETRYING;
            }
        })
    };
    Step in CLOCKS: "a renewal sets the lock's end even if it would be earlier" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if matches!(operation, Operation::Renew { .. }) && entry.state == PROCESSING {
                entry.at = entry.at.min(micros(now));
            }
        })
    };
    History in TWO_CLIENTS: "a renewal does not extend the lock" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if matches!(operation, Operation::Renew { .. }) {
                after.at = before.map_or(after.at, |before| before.at);
            }
        })
    };
    Step in ANY_COMMAND: "a completion overrules a failure" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if completes(operation) && entry.state == RETRYING {
                entry.state = PROCESSING;
            }
        })
    };
    Step in ANY_COMMAND: "a completion overrules a give-up" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if completes(operation) && entry.state == FAILED {
                entry.state = PROCESSING;
            }
        })
    };
    History in ANY_COMMAND: "a failure overrules a completion" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if fails(operation) && entry.state == COMPLETED {
                entry.state = PROCESSING;
            }
        })
    };
    Step in LAST_TOKENS: "a completion without an entry is lost" => |entry, operation, now| {
        if completes(operation) && entry.is_none() {
            return (None, Reply::Lost);
        }
        step(entry, operation, now)
    };
    History in OPERATOR: "an adopted completion has no fingerprint" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if before.is_none() && completes(operation) {
                after.fingerprint = 0;
            }
        })
    };
    Step in ANY_COMMAND: "a completion keeps permanent_failure" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if completes(operation) {
                after.permanent_failure |= before.is_some_and(|before| before.permanent_failure);
            }
        })
    };
    Step in TWO_CLIENTS: "a completion drops the reply" => |entry, operation, now| {
        with_result(entry, operation, now, |_, after| {
            if completes(operation) && after.state == COMPLETED {
                (after.kind, after.tail) = (NO_TAIL, Vec::new());
            }
        })
    };
    Step in TWO_CLIENTS: "a repeated failure postpones the next attempt" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if fails(operation) && entry.state == RETRYING && !entry.released {
                entry.state = PROCESSING;
            }
        })
    };
    Step in THREE_CLIENTS: "the failure of a give-up lock stays counted as a crash" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if fails(operation) && let Some(before) = before {
                after.give_ups = before.give_ups;
            }
        })
    };
    Step in TWO_CLIENTS: "a failure without a text drops the last error" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            let is_silent = matches!(operation, Operation::Fail { error, .. } if error.is_empty());
            if is_silent && before.is_some_and(|before| before.state == PROCESSING) {
                (after.kind, after.tail) = (NO_TAIL, Vec::new());
            }
        })
    };
    Step in THREE_CLIENTS: "a grant drops the last error" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if is_new_grant(before, after) {
                (after.kind, after.tail) = (NO_TAIL, Vec::new());
            }
        })
    };
    History in LIMITS: "an interrupted handler is released without end" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if releases(operation) && entry.state == PROCESSING {
                entry.interrupts = 0;
            }
        })
    };
    History in LIMITS: "the ninth interruption is not counted either" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            let was_at_limit = before.is_some_and(|before| before.state == PROCESSING && before.interrupts == 8);
            if was_at_limit && releases(operation) && after.released {
                after.attempt = after.attempt.saturating_sub(1);
            }
        })
    };
    Step in TWO_CLIENTS: "a release hands no attempt back" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if releases(operation) && let Some(before) = before {
                after.attempt = before.attempt;
            }
        })
    };
    History in LIMITS: "a repeated release hands another attempt back" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if releases(operation) && before.is_some_and(|before| before.released) && after.released {
                after.attempt = after.attempt.saturating_sub(1);
            }
        })
    };
    History in TWO_CLIENTS: "a release deletes the entry" => |entry, operation, now| {
        match step(entry, operation, now) {
            (_, Reply::Released) => (None, Reply::Released),
            other => other,
        }
    };
    Step in TWO_CLIENTS: "a cancel keeps the attempt" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if matches!(operation, Operation::Cancel { .. }) && let Some(before) = before {
                after.attempt = before.attempt;
            }
        })
    };
    Step in ANY_COMMAND: "a key is given up after its run has failed" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if matches!(operation, Operation::GiveUp { .. }) && entry.state == RETRYING {
                entry.state = PROCESSING;
            }
        })
    };
    History in OPERATOR: "fingerprints are not compared" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if acquires(operation) {
                entry.fingerprint = 0;
            }
        })
    };
    Step in OPERATOR: "fingerprints are not compared in F" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if acquires(operation) && entry.state == FAILED {
                entry.fingerprint = 0;
            }
        })
    };
    Step in TWO_CLIENTS: "fingerprints are compared in C only" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if acquires(operation) && entry.state != COMPLETED {
                entry.fingerprint = 0;
            }
        })
    };
    Step in OPERATOR: "the fingerprint of a key that was never tried is fixed" => |entry, operation, now| {
        let is_other = match (operation, &entry) {
            (Operation::Acquire { fingerprint: Some(asked), .. }, Some(entry)) => {
                entry.fingerprint().is_some_and(|kept| kept != *asked)
            }
            _ => false,
        };
        if is_other { (entry, Reply::Mismatch) } else { step(entry, operation, now) }
    };
    Step in FINGERPRINTS: "a grant without a fingerprint forgets that of the key" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if has_no_fingerprint(operation) && is_new_grant(before, after) {
                after.fingerprint = 0;
            }
        })
    };
    Step in FINGERPRINTS: "a takeover without a fingerprint forgets that of the key" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if has_no_fingerprint(operation)
                && let Some(before) = before && before.state == PROCESSING && is_new_grant(Some(before), after)
            {
                after.fingerprint = 0;
            }
        })
    };
    History in FINGERPRINTS: "only the first grant stores its fingerprint" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if let Some(before) = before && is_new_grant(Some(before), after) {
                after.fingerprint = before.fingerprint;
            }
        })
    };
    Step in FINGERPRINTS: "an acquire without a fingerprint is a mismatch" => |entry, operation, now| {
        let is_missing = has_no_fingerprint(operation)
            && entry.as_ref().is_some_and(|entry| entry.fingerprint().is_some());
        if is_missing { (entry, Reply::Mismatch) } else { step(entry, operation, now) }
    };
    Step in FINGERPRINTS: "a key without a fingerprint is a mismatch" => |entry, operation, now| {
        let is_missing = matches!(operation, Operation::Acquire { fingerprint: Some(_), .. })
            && entry.as_ref().is_some_and(|entry| entry.fingerprint().is_none());
        if is_missing { (entry, Reply::Mismatch) } else { step(entry, operation, now) }
    };
    Step in FINGERPRINTS: "a completion stores its fingerprint" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if let Operation::Complete { fingerprint, .. } = operation
                && before.is_some_and(|before| before.state == PROCESSING) && after.state == COMPLETED
            {
                after.fingerprint = fingerprint.map_or(0, |bits| bits.to_bits());
            }
        })
    };
    Step in OPERATOR: "a redrive does not compare the token" => |entry, operation, now| {
        let mut current = operation.clone();
        if let (Operation::Redrive { token, .. }, Some(entry)) = (&mut current, &entry) {
            *token = entry.token();
        }
        step(entry, &current, now)
    };
    Step in OPERATOR: "a forced redrive takes a live lock" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if matches!(operation, Operation::Redrive { force: true, .. }) {
                entry.state = FAILED;
            }
        })
    };
    Step in OPERATOR: "a redrive keeps the attempts" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if redrives(operation) && let Some(before) = before {
                after.attempt = before.attempt;
            }
        })
    };
    Step in OPERATOR: "a redrive keeps the owner" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if redrives(operation) && let Some(before) = before {
                after.owner = before.owner;
            }
        })
    };
    Step in OPERATOR: "a redrive keeps the fingerprint" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if redrives(operation) && let Some(before) = before {
                after.fingerprint = before.fingerprint;
            }
        })
    };
    Step in OPERATOR: "a redrive keeps the reply" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if redrives(operation) && let Some(before) = before {
                (after.kind, after.tail) = (before.kind, before.tail.clone());
            }
        })
    };
    Step in OPERATOR: "a redrive keeps the give-ups" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if redrives(operation) && let Some(before) = before {
                after.give_ups = before.give_ups;
            }
        })
    };
    Step in CLOCKS: "a lock is not clamped after the clock was set back" => |entry, operation, now| {
        let is_far = entry.as_ref().is_some_and(|entry| {
            entry.at().duration_since(now).is_ok_and(|wait| wait > 2 * TICK)
        });
        if is_far && acquires(operation) && state_is(&entry, PROCESSING)
            && !matches!(operation, Operation::Acquire { owner, .. }
                if entry.as_ref().is_some_and(|entry| entry.owner() == Some(*owner)))
        {
            let reply = reply(entry.as_ref(), operation, now);
            return (entry, reply);
        }
        step(entry, operation, now)
    };
    Step in TWO_CLIENTS: "a lock is clamped to half of its TTL" => |entry, operation, now| {
        let is_other = matches!(operation, Operation::Acquire { owner, .. }
            if entry.as_ref().is_some_and(|entry| entry.owner() != Some(*owner)));
        with_result(entry, operation, now, |before, after| {
            if is_other && after.state == PROCESSING && !is_new_grant(before, after) {
                after.at = after.at.min(micros(now + TICK));
            }
        })
    };
    History in STEPS: "a grant drops the steps" => |entry, operation, now| {
        without_steps(entry, operation, now, is_new_grant)
    };
    History in STEPS: "a failure drops the steps" => |entry, operation, now| {
        without_steps(entry, operation, now, |_, after| fails(operation) && after.state == RETRYING)
    };
    History in STEPS: "a release drops the steps" => |entry, operation, now| {
        without_steps(entry, operation, now, |_, after| releases(operation) && after.state == RETRYING)
    };
    History in STEPS: "a step gets its last result" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if let Operation::RecordStep { name, .. } = operation {
                entry.remove_step(name);
            }
        })
    };
    History in STEPS: "a give-up drops the steps" => |entry, operation, now| {
        without_steps(entry, operation, now, |_, after| after.state == FAILED)
    };
    History in STEPS: "a redrive drops the steps" => |entry, operation, now| {
        without_steps(entry, operation, now, |_, after| redrives(operation) && after.state == RETRYING)
    };
    History in STEPS: "a step replaces the one before" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if let Operation::RecordStep { name, .. } = operation && !entry.has_step(name) {
                entry.steps.clear();
            }
        })
    };
    History in STEPS: "the names of steps are not compared" => |entry, operation, now| {
        match step(entry.clone(), operation, now) {
            (_, Reply::StepRecorded) if entry.as_ref().is_some_and(|entry| entry.steps().is_some()) => {
                (entry, Reply::StepRecorded)
            }
            stepped => stepped,
        }
    };
    Step in STEPS: "a second step is recorded again" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if let Operation::RecordStep { name, result, .. } = operation
                && let Some(before) = before && after.state == PROCESSING && before.has_step(name)
                && !before.steps.starts_with(&encoded_step(name, &[])[..1 + name.len()])
            {
                after.steps.extend(encoded_step(name, result));
            }
        })
    };
    Step in STEPS: "each step is limited, and not all together" => |entry, operation, now| {
        match (step(entry, operation, now), operation) {
            ((Some(entry), Reply::StepTooLarge), Operation::RecordStep { name, result, .. }) => {
                let mut raw = Raw::of(&entry);
                raw.steps.extend(encoded_step(name, result));
                (Some(raw.entry()), Reply::StepRecorded)
            }
            (stepped, _) => stepped,
        }
    };
    History in STEPS: "a step that is too large is acknowledged" => |entry, operation, now| {
        match step(entry, operation, now) {
            (entry, Reply::StepTooLarge) => (entry, Reply::StepRecorded),
            stepped => stepped,
        }
    };
    History in STEPS: "a step that is too large makes room for itself" => |entry, operation, now| {
        with_entry(entry, operation, now, |entry| {
            if let Operation::RecordStep { result, .. } = operation && result.len() > 1 {
                entry.steps.clear();
            }
        })
    };
    Step in STEPS: "a stale grant records a step" => |entry, operation, now| {
        let operation = match operation {
            Operation::RecordStep { .. } => with_grant(operation, |grant| {
                if let Some(owner) = entry.as_ref().and_then(Entry::owner) {
                    grant.owner = owner;
                }
                grant.token = entry.as_ref().map_or(grant.token, Entry::token);
            }),
            other => other.clone(),
        };
        step(entry, &operation, now)
    };
    Step in STEPS: "a completion keeps the steps" => |entry, operation, now| {
        with_result(entry, operation, now, |before, after| {
            if completes(operation) && let Some(before) = before {
                after.steps = before.steps.clone();
            }
        })
    };
    Step in STEPS: "an acquire by the owner does not return the steps" => |entry, operation, now| {
        let (entry, mut reply) = step(entry, operation, now);
        if let Reply::Acquired { steps, .. } = &mut reply {
            *steps = None;
        }
        (entry, reply)
    };
};
