//! One run of the function under test, and what the rules ask about it.

use std::time::{Duration, SystemTime};

use campanile_core::limits::{MAX_BACKOFF, MAX_INTERRUPTS, MAX_LOCK_TTL};
use campanile_core::{Entry, FencingToken, Grant, Operation, Owner, Reply, State};

use crate::compact::encoded_step;
use crate::raw::{COMPLETED, ERROR, PROCESSING, RETRYING, Raw};
use crate::rules::StepFn;

/// One operation on an entry, and its result.
pub(crate) struct Step {
    pub(crate) run: StepFn,
    pub(crate) now: SystemTime,
    /// The same in microseconds since 1970.
    pub(crate) micros: u64,
    pub(crate) entry_before: Option<Entry>,
    pub(crate) before: Option<Raw>,
    pub(crate) operation: Operation,
    pub(crate) entry_after: Option<Entry>,
    pub(crate) after: Option<Raw>,
    pub(crate) reply: Reply,
}

impl Step {
    pub(crate) fn run(
        run: StepFn,
        before: Option<Entry>,
        operation: Operation,
        now: SystemTime,
    ) -> Self {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (after, reply) = run(before.clone(), &operation, now);
        Self {
            run,
            now,
            micros: since.as_micros() as u64,
            before: before.as_ref().map(Raw::of),
            entry_before: before,
            operation,
            after: after.as_ref().map(Raw::of),
            entry_after: after,
            reply,
        }
    }

    pub(crate) fn is_unchanged(&self) -> bool {
        self.entry_before == self.entry_after
    }

    /// The entry before the step, if it is in this state.
    pub(crate) fn in_state(&self, state: u8) -> Option<&Raw> {
        self.before.as_ref().filter(|entry| entry.state == state)
    }

    /// The entry before the step, if the operation names its last grant (redrive: its token).
    pub(crate) fn mine(&self) -> Option<&Raw> {
        let entry = self.before.as_ref()?;
        let is_mine = match self.operation {
            Operation::Acquire { owner, .. } | Operation::Cancel { owner } => {
                entry.owner == owner.get()
            }
            Operation::Redrive { token, .. } => entry.token == token.get(),
            Operation::Renew { grant, .. }
            | Operation::Complete { grant, .. }
            | Operation::Fail { grant, .. }
            | Operation::Release { grant, .. }
            | Operation::RecordStep { grant, .. }
            | Operation::GiveUp { grant, .. } => belongs_to(entry, grant),
            _ => false,
        };
        is_mine.then_some(entry)
    }

    pub(crate) fn is_acquire(&self) -> bool {
        matches!(self.operation, Operation::Acquire { .. })
    }

    /// The entry after the step, if the step gave it a new grant.
    pub(crate) fn new_grant(&self) -> Option<&Raw> {
        let after = self.after.as_ref().filter(|_| self.is_acquire())?;
        let grant = |entry: &Raw| (entry.token, entry.owner);
        let is_new = self.before.as_ref().is_none_or(|before| grant(before) != grant(after));
        is_new.then_some(after)
    }

    /// The entry whose owner records a step, and the steps that it would have without a limit.
    pub(crate) fn recorded(&self) -> Option<(&Raw, Vec<u8>)> {
        let Operation::RecordStep { name, result, .. } = &self.operation else {
            return None;
        };
        let entry = self.mine().filter(|entry| entry.state == PROCESSING)?;
        let has_step = entry.has_step(name);
        let step = if has_step { Vec::new() } else { encoded_step(name, result) };
        Some((entry, [&entry.steps[..], &step].concat()))
    }

    /// Whether the acquire has another fingerprint than a key that was tried.
    pub(crate) fn is_mismatch(&self) -> bool {
        let Operation::Acquire { fingerprint: Some(fingerprint), .. } = self.operation else {
            return false;
        };
        self.before.as_ref().is_some_and(|entry| {
            let was_tried = entry.state != RETRYING || entry.attempt > 0 || entry.interrupts > 0;
            was_tried && entry.fingerprint != 0 && entry.fingerprint != fingerprint.to_bits()
        })
    }

    /// The token that a grant has to get, if one is left.
    pub(crate) fn next_token(&self) -> Option<FencingToken> {
        let Operation::Acquire { floor, .. } = self.operation else {
            return None;
        };
        let previous = self.before.as_ref().map_or(0, |entry| entry.token);
        FencingToken::new((previous + 1).max(self.micros).max(floor.get() + 1))
    }

    /// The entry that an acquire by another owner has to wait for, and how long.
    pub(crate) fn wait(&self, state: u8) -> Option<(&Raw, Duration)> {
        let entry = self.in_state(state).filter(|_| self.is_acquire() && !self.is_mismatch())?;
        let max = if state == PROCESSING { MAX_LOCK_TTL } else { MAX_BACKOFF };
        let remaining = Duration::from_micros(entry.at.saturating_sub(self.micros)).min(max);
        (self.mine().is_none() && !remaining.is_zero()).then_some((entry, remaining))
    }

    /// Whether the acquire has to be granted, if a token is left.
    pub(crate) fn is_due(&self) -> bool {
        let is_free = match self.before.as_ref().map(|entry| entry.state) {
            None => true,
            Some(PROCESSING | RETRYING) => {
                self.mine().is_none()
                    && self.before.as_ref().is_some_and(|entry| entry.at <= self.micros)
            }
            Some(_) => false,
        };
        self.is_acquire() && is_free && !self.is_mismatch()
    }

    /// Whether the step replied this and made exactly this change.
    pub(crate) fn became(
        &self,
        before: &Raw,
        reply: &Reply,
        change: impl FnOnce(&mut Raw),
    ) -> bool {
        let mut expected = before.clone();
        change(&mut expected);
        self.reply == *reply && self.after.as_ref() == Some(&expected)
    }

    /// The reply to this operation on the resulting entry, some time later.
    pub(crate) fn later(&self, operation: &Operation, delay: Duration) -> (Option<Entry>, Reply) {
        (self.run)(self.entry_after.clone(), operation, self.now + delay)
    }

    /// The acquire of a client that was never seen before.
    pub(crate) fn stranger(&self) -> Operation {
        Operation::Acquire {
            owner: Owner::new(u64::MAX).expect("not zero"),
            ttl: Duration::from_secs(1),
            max_attempts: 1,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        }
    }

    pub(crate) fn plus(&self, duration: Duration) -> u64 {
        self.micros + duration.as_micros() as u64
    }
}

pub(crate) fn belongs_to(entry: &Raw, grant: Grant) -> bool {
    entry.token == grant.token.get() && entry.owner == grant.owner.get()
}

pub(crate) fn state(bits: u8) -> State {
    match bits {
        PROCESSING => State::Processing,
        RETRYING => State::Retrying,
        COMPLETED => State::Completed,
        _ => State::Failed,
    }
}

pub(crate) fn is_grant(reply: &Reply) -> bool {
    matches!(reply, Reply::Acquired { .. } | Reply::Exhausted { .. })
}

/// Leaves P.
pub(crate) fn leave(entry: &mut Raw, state: u8, at: u64) {
    entry.state = state;
    entry.at = at;
    entry.giving_up = false;
    entry.released = false;
}

pub(crate) fn set_error(entry: &mut Raw, text: &str) {
    if !text.is_empty() {
        entry.kind = ERROR;
        entry.tail = text.as_bytes().to_vec();
    }
}

/// What a release changes.
pub(crate) fn release(entry: &mut Raw, ran: bool, now: u64) {
    if entry.giving_up {
        entry.give_ups = entry.give_ups.saturating_sub(1);
    } else if !ran {
        entry.attempt = entry.attempt.saturating_sub(1);
    } else if entry.interrupts < MAX_INTERRUPTS {
        entry.interrupts += 1;
        entry.attempt = entry.attempt.saturating_sub(1);
    }
    leave(entry, RETRYING, now);
    entry.released = true;
}
