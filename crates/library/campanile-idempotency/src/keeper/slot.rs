//! The state of one acquisition, from the first command to the last answer.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::telemetry::StoreOperation;
use campanile_core::{
    Clock, Command, Details, FencingToken, Fingerprint, Grant, IdempotencyKey, Interrupt,
    LockControl, LockLost, LostCause, Operation, Owner, Steps,
};
use tokio::sync::oneshot;

use super::lock_events::LockEvents;
use super::request::{
    AcquireRequest, Acquisition, LockKey, LockSettings, SettleResult, Settlement,
};
use super::results::{LocalAnswer, LocalResult, RecentResults};
use super::settled::SettledFuture;
use super::steps::{PendingStep, PendingSteps};
use crate::telemetry::LayerMetrics;

/// One acquisition of a key. While the slot exists, this keeper does not acquire the key again, and
/// at most one command for it is in flight: a settlement is sent only after a renewal has ended.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: LockKey,
    pub(super) settings: Arc<LockSettings>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) owner: Owner,
    details: Details,
    pub(super) phase: Phase,
    pub(super) command: CommandState,
    /// The time set in the keeper's timers.
    pub(super) timer: Option<Duration>,
    /// Dropped with the slot, which wakes the waiters for the key.
    settled: Option<(oneshot::Sender<()>, SettledFuture)>,
    /// How the acquisition has ended, if known.
    result: Option<LocalResult>,
    /// Dropped with the slot, which wakes the driver.
    _interrupt: Option<Interrupt>,
}

/// The progress of the slot's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandState {
    /// There is no command.
    Idle,
    /// In one of the keeper's queues.
    Queued,
    /// In a call that is not answered yet.
    InFlight,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The acquire is not answered yet.
    Acquiring {
        reply: oneshot::Sender<Acquisition>,
        /// Whether the acquire may have been sent: its call was dropped, and the command will be
        /// repeated.
        was_sent: bool,
    },
    /// A [`HeldLock`](super::HeldLock) exists.
    Held(HeldGrant),
    /// The last command of the grant is not answered yet.
    Settling(SettlingGrant),
    /// The acquire was not answered, and may have been granted. From now on, the nonce is used only
    /// for the cancel: a late copy of the cancel would release a lock granted to the same nonce.
    Cancelling {
        tries: u32,
        until: Duration,
        /// A later request for the key, which acquires it once the cancel is answered.
        next: Option<AcquireRequest>,
    },
    /// Ended, except for the answer to a command in flight.
    Ended,
}

#[derive(Debug)]
pub(super) struct HeldGrant {
    pub(super) control: LockControl,
    pub(super) grant: Grant,
    pub(super) attempt: u16,
    /// When the next renewal is due.
    pub(super) renew_at: Duration,
    /// The latest time at which the lock is held.
    pub(super) hold_until: Duration,
    /// Whether the loss of the lock was detected.
    pub(super) is_lost: bool,
    /// The steps that the handler waits to have recorded.
    pub(super) steps: PendingSteps,
}

#[derive(Debug)]
pub(super) struct SettlingGrant {
    pub(super) grant: Grant,
    pub(super) attempt: u16,
    pub(super) settlement: Settlement,
    /// `None` if the future was dropped.
    pub(super) reply: Option<oneshot::Sender<SettleResult>>,
    pub(super) tries: u32,
}

/// The kind of a command, so that its answer is understood even if the phase has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    Acquire,
    Renew,
    RecordStep,
    Settle,
    Cancel,
}

impl CommandKind {
    /// Returns the operation as metrics name it.
    pub(super) fn operation(self) -> StoreOperation {
        match self {
            Self::Acquire => StoreOperation::Acquire,
            Self::Renew => StoreOperation::Renew,
            Self::RecordStep => StoreOperation::RecordStep,
            Self::Settle | Self::Cancel => StoreOperation::Settle,
        }
    }
}

impl Slot {
    pub(super) fn new(acquire: AcquireRequest) -> Self {
        let AcquireRequest { key, owner, settings, fingerprint, details, interrupt, reply } =
            acquire;
        settings.metrics.locks_held.increment();
        Self {
            key,
            settings,
            fingerprint,
            owner,
            details,
            phase: Phase::Acquiring { reply, was_sent: false },
            command: CommandState::Idle,
            timer: None,
            settled: None,
            result: None,
            _interrupt: interrupt,
        }
    }

    pub(super) fn settled(&mut self) -> SettledFuture {
        self.settled.get_or_insert_with(SettledFuture::pair).1.clone()
    }

    /// The details that the entry keeps once it is COMPLETED.
    pub(super) fn kept_details(&self) -> Option<Details> {
        self.settings.keep_details.then(|| self.details.clone())
    }

    /// The log events about a lock that was granted to this acquisition.
    pub(super) fn events(&self, token: FencingToken) -> Box<LockEvents> {
        Box::new(LockEvents {
            key: self.key.store_key.clone(),
            token,
            details: self.details.clone(),
        })
    }

    /// An empty text keeps that of the entry, which has none if none is stored.
    fn stored_text(&self, text: Box<str>) -> Box<str> {
        if self.settings.store_errors { text } else { "".into() }
    }

    /// Records how the acquisition has ended.
    pub(super) fn set_result(&mut self, answer: LocalAnswer, clock: &Clock) {
        // Usually there are no waiters.
        if self.settled.is_some() {
            self.result = Some(LocalResult::new(answer, self.fingerprint, clock.now()));
        }
    }

    /// Publishes how the acquisition has ended, before the slot is dropped.
    pub(super) fn publish_result(&mut self, results: &mut RecentResults) {
        if let (Some((_, settled)), Some(result)) = (&self.settled, self.result.take())
            && let Some(result) = settled.set_result(result)
        {
            results.insert(&self.key.store_key, result);
        }
    }

    /// Checks whether the request was dropped before its acquire was sent.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(&self.phase, Phase::Acquiring { reply, was_sent: false } if reply.is_closed())
    }

    pub(super) fn next_command(
        &self,
        floor: FencingToken,
        now: Duration,
    ) -> Option<(CommandKind, Command)> {
        let (kind, operation) = match &self.phase {
            Phase::Acquiring { .. } if self.is_abandoned() => return None,
            Phase::Acquiring { .. } => (
                CommandKind::Acquire,
                Operation::Acquire {
                    owner: self.owner,
                    ttl: self.settings.ttl,
                    max_attempts: self.settings.max_attempts,
                    fingerprint: self.fingerprint,
                    floor,
                    details: Some(self.details.clone()),
                },
            ),
            Phase::Held(held) if held.control.cause().is_some() => return None,
            Phase::Held(held) => match held.due_step(now) {
                Some(step) => (CommandKind::RecordStep, step.operation(held.grant)),
                None => (
                    CommandKind::Renew,
                    Operation::Renew { grant: held.grant, ttl: self.settings.ttl },
                ),
            },
            Phase::Settling(settling) => (CommandKind::Settle, settling.operation(self)?),
            Phase::Cancelling { .. } => {
                (CommandKind::Cancel, Operation::Cancel { owner: self.owner })
            }
            Phase::Ended => return None,
        };
        let retention = self.settings.retention;
        Some((kind, Command { key: self.key.store_key.clone(), operation, retention }))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let metrics = &self.settings.metrics;
        metrics.locks_held.decrement();
        // The keeper has stopped before the store has answered.
        if let Phase::Settling(settling) = &self.phase
            && settling.is_unrecorded_completion()
        {
            metrics.completions_unrecorded.decrement();
        }
    }
}

impl HeldGrant {
    pub(super) fn new(
        slot: &Slot,
        token: FencingToken,
        attempt: u16,
        steps: Option<Steps>,
        sent: Duration,
        clock: &Clock,
    ) -> Self {
        let LockSettings { ttl, max_hold, .. } = *slot.settings;
        let deadline = deadline(sent, ttl);
        let LockKey { store_key, idempotency_key } = slot.key.clone();
        let grant = Grant { token, owner: slot.owner };
        Self {
            control: LockControl::new(
                store_key,
                idempotency_key,
                slot.settings.derivation_secret.clone(),
                grant,
                attempt.into(),
                steps,
                clock.clone(),
                deadline,
            ),
            grant,
            attempt,
            renew_at: renew_at(sent, ttl),
            hold_until: sent + max_hold,
            is_lost: false,
            steps: PendingSteps::default(),
        }
    }

    pub(super) fn extend(&mut self, sent: Duration, ttl: Duration) {
        self.control.renewed(deadline(sent, ttl));
        self.renew_at = renew_at(sent, ttl);
    }

    /// The step to record now. A renewal that is due comes first, so that steps do not delay it.
    pub(super) fn due_step(&self, now: Duration) -> Option<&PendingStep> {
        self.steps.front().filter(|step| step.send_at <= now && now < self.renew_at)
    }

    /// Notes that the lock is lost, and counts the first loss.
    pub(super) fn set_lost(&mut self, cause: LostCause, metrics: &LayerMetrics) {
        if !std::mem::replace(&mut self.is_lost, true) {
            metrics.count_lost(self.control.cause().unwrap_or(cause));
        }
    }

    /// Computes when to check the lock next, or `None` once it is lost.
    pub(super) fn next_check(&self, command: CommandState, now: Duration) -> Option<Duration> {
        if self.is_lost || self.control.cause().is_some() {
            return None;
        }
        let result = self.control.deadline().min(self.hold_until);
        let steps = self.steps.front().map_or(Duration::MAX, |step| step.send_at);
        Some(match command {
            CommandState::Idle => result.min(self.renew_at).min(steps),
            // The renewal does not wait behind a step.
            CommandState::Queued if now < self.renew_at => result.min(self.renew_at),
            CommandState::Queued | CommandState::InFlight => result,
        })
    }
}

impl SettlingGrant {
    fn operation(&self, slot: &Slot) -> Option<Operation> {
        let grant = self.grant;
        Some(match self.settlement.clone() {
            Settlement::Complete { reply } => Operation::Complete {
                grant,
                attempt: self.attempt,
                fingerprint: slot.fingerprint,
                reply,
                details: slot.kept_details(),
            },
            Settlement::Fail { delay, last, error } => {
                Operation::Fail { grant, delay, last, error: slot.stored_text(error) }
            }
            Settlement::Release { ran } => Operation::Release { grant, ran },
            Settlement::GiveUp { reason } => {
                Operation::GiveUp { grant, reason: slot.stored_text(reason) }
            }
            Settlement::Completed(_) | Settlement::Expire => return None,
        })
    }

    /// Checks whether the handler has succeeded.
    pub(super) fn is_completion(&self) -> bool {
        matches!(self.settlement, Settlement::Complete { .. })
    }

    /// Checks whether the handler has succeeded and the store has not answered the first try to
    /// record it.
    pub(super) fn is_unrecorded_completion(&self) -> bool {
        self.tries > 0 && self.is_completion()
    }

    /// Creates the error for a grant that had already ended differently.
    pub(super) fn lost_error(&self, key: &IdempotencyKey) -> LockLost {
        let cause = LostCause::Superseded;
        LockLost { key: key.clone(), token: self.grant.token, cause }
    }
}

/// Draws the nonce of one acquisition from the operating system's random number generator.
///
/// An acquire with the nonce of a live lock is granted that lock, so no two acquisitions may ever
/// share a nonce. A generator in this process is not sufficient: machines that boot together may
/// share its seed, and all copies of a virtual machine's snapshot share its state. For the same
/// reason, no nonce is drawn in advance.
pub(super) fn new_nonce() -> Owner {
    loop {
        let nonce = getrandom::u64().expect("the operating system provides random numbers");
        if let Some(owner) = Owner::new(nonce) {
            return owner;
        }
    }
}

/// Computes the deadline of a lock for its holder from the time before the command was sent, minus
/// a margin, so that it comes before the expiration in the store.
pub(super) fn deadline(sent: Duration, ttl: Duration) -> Duration {
    sent + ttl - (ttl / 10).max(Duration::from_millis(50))
}

/// Computes when to renew: after a third of the TTL, so that two renewals may fail.
///
/// Some jitter is subtracted, so that locks acquired together are not renewed together forever. The
/// result is rounded down to a multiple of a 24th of the TTL, so that locks acquired one by one are
/// renewed in batches.
fn renew_at(sent: Duration, ttl: Duration) -> Duration {
    let due = sent + (ttl / 3).mul_f64(1.0 - 0.1 * fastrand::f64());
    let remainder = due.as_nanos() % (ttl / 24).as_nanos();
    due - Duration::from_nanos(remainder as u64)
}
