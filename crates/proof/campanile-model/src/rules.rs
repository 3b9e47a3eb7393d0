//! The rules of `docs/protocol.md` that one step can keep or break.
//!
//! They are checked on every distinct combination of entry, command and time that the explorer
//! reaches. [`history`](crate::history) has the rules about whole histories.

use std::time::{Duration, SystemTime};

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL, MAX_STEPS_BYTES};
use campanile_core::{Entry, FencingToken, Operation, Reply, State};

use crate::raw::{COMPLETED, ERROR, FAILED, NO_TAIL, PROCESSING, REPLY, RETRYING, Raw};
use crate::step::{Step, belongs_to, is_grant, leave, release, set_error, state};

/// The function under test: `campanile_core::step`, or a mutant of it.
pub type StepFn = fn(Option<Entry>, &Operation, SystemTime) -> (Option<Entry>, Reply);

/// A rule and the part of `docs/protocol.md` that states it.
#[derive(Debug)]
pub struct Rule {
    /// The rule as one clause.
    pub name: &'static str,
    /// The heading, row or decision.
    pub section: &'static str,
}

/// A rule about one step.
pub(crate) struct StepRule {
    pub(crate) rule: Rule,
    /// Whether the step keeps the rule, or `None` if the rule says nothing about it.
    pub(crate) check: fn(&Step) -> Option<bool>,
}

macro_rules! rules {
    ($($section:literal: $name:literal => $check:expr;)*) => {
        &[$(StepRule { rule: Rule { name: $name, section: $section }, check: $check }),*]
    };
}

pub(crate) static STEP_RULES: &[StepRule] = rules! {
    "Entry": "mine means that token and owner are equal; otherwise the reply is Lost" => |step| {
        let named = !matches!(step.operation, Operation::Acquire { .. } | Operation::Redrive { .. });
        let stale = named && step.before.is_some() && step.mine().is_none();
        stale.then(|| step.reply == Reply::Lost && step.is_unchanged())
    };
    "Entry": "an expired lock belongs to its grant until another is granted" => |step| {
        let entry = step.mine().filter(|entry| entry.state == PROCESSING && entry.at <= step.micros)?;
        let applied = match step.operation {
            Operation::Acquire { .. } => step.is_mismatch() || is_grant(&step.reply),
            Operation::Redrive { .. } => return None,
            _ => matches!(
                step.reply,
                Reply::Renewed | Reply::StepRecorded | Reply::StepTooLarge | Reply::Completed
                    | Reply::Retrying | Reply::Released | Reply::GivenUp
            ),
        };
        let token = step.after.as_ref().map(|after| after.token);
        Some(applied && token == Some(entry.token))
    };
    "Grant": "the token is the largest of previous + 1, now and floor + 1" => |step| {
        let granted = step.new_grant()?;
        Some(step.next_token().is_some_and(|token| token.get() == granted.token))
    };
    "Grant": "the entry becomes P, with the owner of the command, until now + ttl" => |step| {
        let Operation::Acquire { owner, ttl, .. } = step.operation else { return None };
        let granted = step.new_grant()?;
        Some((granted.state, granted.owner, granted.at) == (PROCESSING, owner.get(), step.plus(ttl)))
    };
    "Grant": "an attempt is counted, or a give-up if none is left; the counters saturate" => |step| {
        let Operation::Acquire { max_attempts, .. } = step.operation else { return None };
        let granted = step.new_grant()?;
        let before = step.before.as_ref();
        let (attempt, give_ups) = before.map_or((0, 0), |entry| (entry.attempt, entry.give_ups));
        let is_exhausted = before.is_some_and(|entry| entry.permanent_failure)
            || (max_attempts > 0 && attempt >= max_attempts);
        let counted = if is_exhausted {
            (attempt, give_ups.saturating_add(1))
        } else {
            (attempt.saturating_add(1), give_ups)
        };
        Some(granted.giving_up == is_exhausted && (granted.attempt, granted.give_ups) == counted)
    };
    "Grant": "the reply is Exhausted for a give-up lock, with the last error, otherwise Acquired" => |step| {
        let granted = step.new_grant()?;
        let token = FencingToken::new(granted.token)?;
        let attempt = granted.attempt;
        let last_error = step.entry_after.as_ref().and_then(|entry| entry.error().map(Into::into));
        let exhausted = Reply::Exhausted { token, attempt, give_ups: granted.give_ups, last_error };
        let steps = step.entry_after.as_ref().and_then(|entry| entry.steps().cloned());
        let acquired = Reply::Acquired { token, attempt, steps };
        Some(step.reply == if granted.giving_up { exhausted } else { acquired })
    };
    "Notes: grant": "a grant keeps the steps, the tail, the interrupts and permanent_failure, and clears released" => |step| {
        let (granted, before) = (step.new_grant()?, step.before.as_ref()?);
        let kept = |entry: &Raw| {
            let tail = (entry.steps.clone(), entry.kind, entry.tail.clone());
            (tail, entry.interrupts, entry.permanent_failure)
        };
        Some(kept(granted) == kept(before) && !granted.released)
    };
    "Refinements: created": "created is the low 32 bits of the seconds of the first grant" => |step| {
        let granted = step.new_grant().filter(|_| step.before.is_none())?;
        Some(granted.created == (step.micros / 1_000_000) as u32)
    };
    "Notes: grant": "a grant keeps the fingerprint unless the command has one" => |step| {
        let Operation::Acquire { fingerprint, .. } = step.operation else { return None };
        let granted = step.new_grant()?;
        let kept = step.before.as_ref().map_or(0, |entry| entry.fingerprint);
        Some(granted.fingerprint == fingerprint.map_or(kept, |bits| bits.to_bits()))
    };
    "Notes: token limit": "if no token below 2^53 is left, the reply is Corrupt and nothing is written" => |step| {
        (step.is_due() && step.next_token().is_none())
            .then(|| step.reply == Reply::Corrupt && step.is_unchanged())
    };
    "acquire": "a key that is absent, expired or due is granted" => |step| {
        (step.is_due() && step.next_token().is_some())
            .then(|| step.new_grant().is_some() && is_grant(&step.reply))
    };
    "acquire, P": "the same owner keeps its grant; the lock never ends earlier" => |step| {
        let Operation::Acquire { ttl, .. } = step.operation else { return None };
        let entry = step.mine().filter(|entry| entry.state == PROCESSING && !step.is_mismatch())?;
        let reply = step.reply.clone();
        let same_grant = match reply {
            Reply::Acquired { token, attempt, .. } => {
                !entry.giving_up && (token.get(), attempt) == (entry.token, entry.attempt)
            }
            Reply::Exhausted { token, give_ups, .. } => {
                entry.giving_up && (token.get(), give_ups) == (entry.token, entry.give_ups)
            }
            _ => false,
        };
        let end = entry.at.max(step.plus(ttl));
        Some(same_grant && step.became(entry, &step.reply, |entry| entry.at = end))
    };
    "acquire, P": "a live lock of another owner is Locked for as long as it lives" => |step| {
        let (entry, remaining) = step.wait(PROCESSING)?;
        let at = step.plus(remaining);
        Some(step.became(entry, &Reply::Locked { remaining }, |entry| entry.at = at))
    };
    "acquire, R": "the owner whose run has ended gets Settled" => |step| {
        let entry = step.mine().filter(|entry| entry.state == RETRYING)?;
        (step.is_acquire() && !step.is_mismatch())
            .then(|| step.became(entry, &Reply::Settled(State::Retrying), |_| {}))
    };
    "acquire, R": "an attempt that is not due is BackingOff until it is" => |step| {
        let (entry, remaining) = step.wait(RETRYING)?;
        let (at, attempt) = (step.plus(remaining), entry.attempt);
        Some(step.became(entry, &Reply::BackingOff { remaining, attempt }, |entry| entry.at = at))
    };
    "acquire, C": "a completed key is a Duplicate with its reply" => |step| {
        let entry = step.in_state(COMPLETED).filter(|_| step.is_acquire() && !step.is_mismatch())?;
        let stored = (entry.kind == REPLY).then_some(&*entry.tail);
        Some(step.is_unchanged() && matches!(
            &step.reply,
            Reply::Duplicate { reply, attempt, .. }
                if reply.as_deref() == stored && *attempt == entry.attempt
        ))
    };
    "acquire, F": "a key that was given up is AlreadyGivenUp with its reason" => |step| {
        let entry = step.in_state(FAILED).filter(|_| step.is_acquire() && !step.is_mismatch())?;
        let stored = (entry.kind == ERROR).then_some(&*entry.tail);
        Some(step.is_unchanged() && matches!(
            &step.reply,
            Reply::AlreadyGivenUp { reason, .. }
                if reason.as_deref().map(str::as_bytes) == stored
        ))
    };
    "Notes: fingerprint first": "another fingerprint is a Mismatch once the key was tried, and never before" => |step| {
        (step.is_acquire() && step.before.is_some()).then(|| {
            (step.reply == Reply::Mismatch) == step.is_mismatch()
                && (step.is_unchanged() || !step.is_mismatch())
        })
    };
    "Notes: clamp": "another owner never waits for longer than the longest lock or backoff" => |step| {
        match step.reply {
            Reply::Locked { remaining } => Some(!remaining.is_zero() && remaining <= MAX_LOCK_TTL),
            Reply::BackingOff { remaining, .. } => {
                Some(!remaining.is_zero() && remaining <= MAX_BACKOFF)
            }
            _ => None,
        }
    };
    "renew": "the lock ends at now + ttl, or later if it did" => |step| {
        let Operation::Renew { ttl, .. } = step.operation else { return None };
        let entry = step.mine().filter(|entry| entry.state == PROCESSING)?;
        let end = entry.at.max(step.plus(ttl));
        Some(step.became(entry, &Reply::Renewed, |entry| entry.at = end))
    };
    "record_step": "the step is appended, unless there is one of its name" => |step| {
        let (entry, appended) = step.recorded()?;
        (appended.len() <= MAX_STEPS_BYTES)
            .then(|| step.became(entry, &Reply::StepRecorded, |entry| entry.steps = appended))
    };
    "record_step": "a step beyond the limit of all steps is refused, and nothing changes" => |step| {
        let (entry, appended) = step.recorded()?;
        (appended.len() > MAX_STEPS_BYTES).then(|| step.became(entry, &Reply::StepTooLarge, |_| {}))
    };
    "complete": "the entry becomes C with the reply, and the steps and all flags are cleared" => |step| {
        let Operation::Complete { ref reply, .. } = step.operation else { return None };
        let entry = step.mine().filter(|entry| entry.state == PROCESSING)?;
        Some(step.became(entry, &Reply::Completed, |entry| {
            leave(entry, COMPLETED, step.micros);
            entry.permanent_failure = false;
            entry.steps = Vec::new();
            entry.kind = if reply.is_some() { REPLY } else { NO_TAIL };
            entry.tail = reply.as_deref().unwrap_or_default().to_vec();
        }))
    };
    "complete, absent": "a completion without an entry is adopted" => |step| {
        let Operation::Complete { grant, attempt, fingerprint, ref reply, .. } = step.operation else {
            return None;
        };
        let (None, after) = (&step.before, step.after.as_ref()) else { return None };
        Some(step.reply == Reply::Completed && after.is_some_and(|entry| {
            let counters = (entry.attempt, entry.interrupts, entry.give_ups);
            let flags = entry.giving_up || entry.permanent_failure || entry.released;
            entry.state == COMPLETED
                && belongs_to(entry, grant)
                && counters == (attempt, 0, 0)
                && !flags
                && entry.fingerprint == fingerprint.map_or(0, |bits| bits.to_bits())
                && entry.tail == reply.as_deref().unwrap_or_default()
                && (entry.at, entry.created) == (step.micros, (step.micros / 1_000_000) as u32)
        }))
    };
    "fail": "the entry becomes R after the delay, permanent_failure stays, an empty error keeps the last" => |step| {
        let Operation::Fail { delay, last, ref error, .. } = step.operation else { return None };
        let entry = step.mine().filter(|entry| entry.state == PROCESSING)?;
        let at = step.plus(delay);
        Some(step.became(entry, &Reply::Retrying, |entry| {
            entry.give_ups = entry.give_ups.saturating_sub(entry.giving_up.into());
            leave(entry, RETRYING, at);
            entry.permanent_failure |= last;
            set_error(entry, error);
        }))
    };
    "release": "the entry becomes R at once; an attempt is handed back, at most 8 times if the handler ran" => |step| {
        let Operation::Release { ran, .. } = step.operation else { return None };
        let entry = step.mine().filter(|entry| entry.state == PROCESSING)?;
        Some(step.became(entry, &Reply::Released, |entry| release(entry, ran, step.micros)))
    };
    "cancel": "as a release of a handler that did not run" => |step| {
        let Operation::Cancel { .. } = step.operation else { return None };
        let entry = step.mine().filter(|entry| entry.state == PROCESSING)?;
        Some(step.became(entry, &Reply::Released, |entry| release(entry, false, step.micros)))
    };
    "cancel, absent": "there is nothing to undo: Released" => |step| {
        (matches!(step.operation, Operation::Cancel { .. }) && step.before.is_none())
            .then(|| step.reply == Reply::Released && step.is_unchanged())
    };
    "give_up": "the entry becomes F with the reason; an empty reason keeps the last error" => |step| {
        let Operation::GiveUp { ref reason, .. } = step.operation else { return None };
        let entry = step.mine().filter(|entry| entry.state == PROCESSING)?;
        Some(step.became(entry, &Reply::GivenUp, |entry| {
            leave(entry, FAILED, step.micros);
            set_error(entry, reason);
        }))
    };
    "renew, record_step, fail, release, give_up, redrive, absent": "Lost, and no entry is made" => |step| {
        let lost = matches!(
            step.operation,
            Operation::Renew { .. } | Operation::RecordStep { .. } | Operation::Fail { .. }
                | Operation::Release { .. } | Operation::GiveUp { .. } | Operation::Redrive { .. }
        );
        (lost && step.before.is_none()).then(|| step.reply == Reply::Lost && step.after.is_none())
    };
    "Notes: Settled": "a command of a grant that has ended learns how, and changes nothing" => |step| {
        let entry = step.mine().filter(|entry| entry.state != PROCESSING)?;
        let repeated = match (&step.operation, entry.state) {
            (Operation::Acquire { .. } | Operation::Redrive { .. }, _) => return None,
            (Operation::Complete { .. }, COMPLETED) => Reply::Completed,
            (Operation::GiveUp { .. }, FAILED) => Reply::GivenUp,
            (Operation::Fail { .. }, RETRYING) if !entry.released => Reply::Retrying,
            (Operation::Release { .. }, RETRYING) if entry.released => Reply::Released,
            (Operation::Cancel { .. }, RETRYING) => Reply::Released,
            (_, bits) => Reply::Settled(state(bits)),
        };
        Some(step.became(entry, &repeated, |_| {}))
    };
    "redrive": "a held lock is never taken away" => |step| {
        let entry = step.mine().filter(|entry| entry.state == PROCESSING)?;
        matches!(step.operation, Operation::Redrive { .. })
            .then(|| step.became(entry, &Reply::Settled(State::Processing), |_| {}))
    };
    "redrive": "another token is Lost" => |step| {
        let is_redrive = matches!(step.operation, Operation::Redrive { .. });
        (is_redrive && step.before.is_some() && step.mine().is_none())
            .then(|| step.reply == Reply::Lost && step.is_unchanged())
    };
    "redrive": "F, or with force C and R, is reopened: counters, flags, owner, fingerprint and reply are dropped" => |step| {
        let Operation::Redrive { force, .. } = step.operation else { return None };
        let entry = step.mine().filter(|entry| entry.state != PROCESSING)?;
        let is_open = entry.state == RETRYING && entry.attempt == 0 && entry.owner == 0;
        Some(if is_open {
            step.became(entry, &Reply::Reopened, |_| {})
        } else if force || entry.state == FAILED {
            step.became(entry, &Reply::Reopened, |entry| {
                leave(entry, RETRYING, step.micros);
                entry.permanent_failure = false;
                (entry.attempt, entry.interrupts, entry.give_ups) = (0, 0, 0);
                (entry.owner, entry.fingerprint) = (0, 0);
                if entry.kind != ERROR {
                    (entry.kind, entry.tail) = (NO_TAIL, Vec::new());
                }
            })
        } else {
            step.became(entry, &Reply::Settled(state(entry.state)), |_| {})
        })
    };
    "Decision 17": "a key that was reopened can be acquired, as its first attempt" => |step| {
        (step.reply == Reply::Reopened).then(|| {
            let (_, reply) = step.later(&step.stranger(), Duration::ZERO);
            matches!(reply, Reply::Acquired { attempt: 1, .. } | Reply::Corrupt)
        })
    };
    "Notes: Settled, Mismatch, Corrupt, Lost": "a reply that refuses changes nothing" => |step| {
        matches!(
            step.reply,
            Reply::Duplicate { .. } | Reply::AlreadyGivenUp { .. } | Reply::Mismatch
                | Reply::Settled(_) | Reply::Lost | Reply::Corrupt
        )
        .then(|| step.is_unchanged())
    };
    "Notes: FAILED": "only give_up makes an entry FAILED" => |step| {
        let is_failed = step.after.as_ref().is_some_and(|entry| entry.state == FAILED);
        (is_failed && step.in_state(FAILED).is_none())
            .then_some(matches!(step.operation, Operation::GiveUp { .. }))
    };
    "Notes: FAILED": "no operation deletes an entry" => |step| {
        let before = step.before.as_ref()?;
        Some(step.after.as_ref().is_some_and(|after| after.created == before.created))
    };
    "Decision 16": "what a client commits the offset for is COMPLETED or FAILED in the store" => |step| {
        let expected = match step.reply {
            Reply::Completed | Reply::Duplicate { .. } => COMPLETED,
            Reply::GivenUp | Reply::AlreadyGivenUp { .. } => FAILED,
            _ => return None,
        };
        Some(step.after.as_ref().is_some_and(|entry| entry.state == expected))
    };
    "Refinements: a reply is derived from the entry": "a command repeated at the same instant gets the same reply and changes nothing" => |step| {
        let again = (step.run)(step.entry_after.clone(), &step.operation, step.now);
        Some(again == (step.entry_after.clone(), step.reply.clone()))
    };
    "Refinements: a reply is derived from the entry": "the reply follows from the resulting entry" => |step| {
        let reply = campanile_core::reply(step.entry_after.as_ref(), &step.operation, step.now);
        Some(reply == step.reply)
    };
    "Decisions 3 and 4": "a command repeated later gets the same reply, and changes at most the lock's end" => |step| {
        if matches!(step.reply, Reply::Locked { .. } | Reply::BackingOff { .. } | Reply::Corrupt) {
            return None;
        }
        let (after, reply) = step.later(&step.operation, Duration::from_secs(60 * 60));
        let mut after = after.as_ref().map(Raw::of);
        if is_grant(&step.reply) || step.reply == Reply::Renewed {
            let end = step.after.as_ref().map_or(0, |entry| entry.at);
            after = after.map(|entry| Raw { at: end, ..entry });
        }
        Some(reply == step.reply && after == step.after)
    };
    "Notes: clamp": "an acquire after the reported wait is granted" => |step| {
        let (Reply::Locked { remaining } | Reply::BackingOff { remaining, .. }) = step.reply else {
            return None;
        };
        let (_, reply) = step.later(&step.operation, remaining);
        Some(is_grant(&reply) || reply == Reply::Corrupt)
    };
    "Notes: clamp": "a client that asks, and asks again after the reported wait, need not wait" => |step| {
        let stranger = step.stranger();
        let (entry, reply) = step.later(&stranger, Duration::ZERO);
        let (Reply::Locked { remaining } | Reply::BackingOff { remaining, .. }) = reply else {
            return Some(!matches!(reply, Reply::Settled(_) | Reply::Lost));
        };
        let (_, reply) = (step.run)(entry, &stranger, step.now + remaining);
        Some(remaining <= MAX_BACKOFF && (is_grant(&reply) || reply == Reply::Corrupt))
    };
    "Notes: step truncates now": "a fraction of a microsecond has no effect" => |step| {
        let now = step.now + Duration::from_nanos(999);
        let again = (step.run)(step.entry_before.clone(), &step.operation, now);
        Some(again == (step.entry_after.clone(), step.reply.clone()))
    };
};
