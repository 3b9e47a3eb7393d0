//! One acquisition, from the first command to the last answer.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    Clock, Command, FencingToken, Fingerprint, Grant, Interrupt, Lock, LockLost, LostCause,
    Operation, Owner, StoreKey,
};
use tokio::sync::oneshot;

use super::ends::{End, Ends, Known};
use super::request::{Acquire, Acquisition, SettleResult, Settlement, Terms};
use super::settled::Settled;

/// One acquisition of a key. While there is a slot, nobody else here acquires that key, and at most
/// one command for it is on its way: so a renewal has ended before the settlement is sent.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: StoreKey,
    pub(super) terms: Arc<Terms>,
    pub(super) fingerprint: Option<Fingerprint>,
    /// Drawn for this acquisition, and used again when a command is repeated.
    pub(super) owner: Owner,
    pub(super) phase: Phase,
    pub(super) way: Way,
    /// What is set in the keeper's timers.
    pub(super) timer: Option<Duration>,
    /// Dropped with the slot, which tells those who wait.
    settled: Option<(oneshot::Sender<()>, Settled)>,
    /// What they are told, where it is known.
    end: Option<End>,
    /// Dropped with the slot, which tells the driver.
    _interrupt: Option<Interrupt>,
}

/// Where the slot's next command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// There is none.
    Idle,
    /// In one of the keeper's queues.
    Queued,
    /// In a call that is not answered.
    Sent,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The acquire is not answered yet.
    Acquiring { reply: oneshot::Sender<Acquisition> },
    /// Somebody has the lock.
    Held(Held),
    /// The grant's last command is not answered yet.
    Settling(Settling),
    /// The acquire was not answered, and may have been granted. Its nonce is used for nothing but the
    /// cancel any more: a late copy of that would free a lock which was granted to the same nonce.
    Cancelling {
        tries: u32,
        until: Duration,
        /// Who asked for the key meanwhile, and acquires it anew once the cancel is answered.
        next: Option<Acquire>,
    },
    /// Over, but for the answer of a command that is on its way.
    Ended,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) lock: Lock,
    pub(super) grant: Grant,
    pub(super) attempt: u16,
    /// When the next renewal is due.
    pub(super) renew_at: Duration,
    /// The ceiling for one lock.
    pub(super) hold_until: Duration,
}

#[derive(Debug)]
pub(super) struct Settling {
    pub(super) grant: Grant,
    pub(super) attempt: u16,
    pub(super) settlement: Settlement,
    /// `None`: nobody waits.
    pub(super) reply: Option<oneshot::Sender<SettleResult>>,
    pub(super) tries: u32,
}

/// Which command was sent, so that its answer is understood although the phase has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Acquire,
    Renew,
    Settle,
    Cancel,
}

impl Slot {
    pub(super) fn new(acquire: Acquire) -> Self {
        let Acquire { key, terms, fingerprint, interrupt, reply } = acquire;
        Self {
            key,
            terms,
            fingerprint,
            owner: draw_owner(),
            phase: Phase::Acquiring { reply },
            way: Way::Idle,
            timer: None,
            settled: None,
            end: None,
            _interrupt: interrupt,
        }
    }

    /// What tells others that this has ended.
    pub(super) fn settled(&mut self) -> Settled {
        self.settled.get_or_insert_with(Settled::pair).1.clone()
    }

    /// Takes down how it has ended, for those who wait.
    pub(super) fn ended(&mut self, known: Known, clock: &Clock) {
        // Mostly nobody does.
        if self.settled.is_some() {
            self.end = Some(End::new(known, self.fingerprint, clock.now()));
        }
    }

    /// Tells those who wait.
    pub(super) fn tell(self, ends: &mut Ends) {
        if let (Some((_signal, settled)), Some(end)) = (self.settled, self.end)
            && let Some(end) = settled.tell(end)
        {
            ends.insert(self.key, end);
        }
    }

    /// Whether whoever asked for the lock has left, and nothing was sent.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(&self.phase, Phase::Acquiring { reply } if reply.is_closed())
    }

    /// The command that the phase asks for.
    pub(super) fn command(&self, floor: FencingToken) -> Option<(What, Command)> {
        let (what, operation) = match &self.phase {
            Phase::Acquiring { .. } if self.is_abandoned() => return None,
            Phase::Acquiring { .. } => (
                What::Acquire,
                Operation::Acquire {
                    owner: self.owner,
                    ttl: self.terms.ttl,
                    max_attempts: self.terms.max_attempts,
                    fingerprint: self.fingerprint,
                    floor,
                },
            ),
            Phase::Held(held) if held.lock.loss().is_some() => return None,
            Phase::Held(held) => {
                (What::Renew, Operation::Renew { grant: held.grant, ttl: self.terms.ttl })
            }
            Phase::Settling(settling) => (What::Settle, settling.operation(self.fingerprint)?),
            Phase::Cancelling { .. } => (What::Cancel, Operation::Cancel { owner: self.owner }),
            Phase::Ended => return None,
        };
        let retention = self.terms.retention;
        Some((what, Command { key: self.key.clone(), operation, retention }))
    }
}

impl Held {
    pub(super) fn new(
        slot: &Slot,
        token: FencingToken,
        attempt: u16,
        sent: Duration,
        clock: &Clock,
    ) -> Self {
        let Terms { ttl, max_hold, .. } = *slot.terms;
        let deadline = deadline(sent, ttl);
        let key = slot.key.key().clone();
        let grant = Grant { token, owner: slot.owner };
        Self {
            lock: Lock::new(key, grant, attempt.into(), clock.clone(), deadline),
            grant,
            attempt,
            renew_at: renew_at(sent, ttl),
            hold_until: sent + max_hold,
        }
    }

    pub(super) fn renewed(&mut self, sent: Duration, ttl: Duration) {
        self.lock.renewed(deadline(sent, ttl));
        self.renew_at = renew_at(sent, ttl);
    }

    /// When the keeper has to look at it next; never, once it is lost.
    pub(super) fn next(&self, renewing: bool) -> Option<Duration> {
        if self.lock.loss().is_some() {
            return None;
        }
        let end = self.lock.deadline().min(self.hold_until);
        Some(if renewing { end } else { end.min(self.renew_at) })
    }
}

impl Settling {
    fn operation(&self, fingerprint: Option<Fingerprint>) -> Option<Operation> {
        let grant = self.grant;
        Some(match self.settlement.clone() {
            Settlement::Complete { reply } => {
                Operation::Complete { grant, attempt: self.attempt, fingerprint, reply }
            }
            Settlement::Fail { delay, last, error } => {
                Operation::Fail { grant, delay, last, error }
            }
            Settlement::Release { ran } => Operation::Release { grant, ran },
            Settlement::Reject { reason } => Operation::Reject { grant, reason },
            Settlement::Completed(_) | Settlement::Expire => return None,
        })
    }

    /// The error for whoever waits, when the store says that the grant had ended otherwise.
    pub(super) fn lost(&self, key: &StoreKey) -> LockLost {
        let cause = LostCause::Superseded;
        LockLost { key: key.key().clone(), token: self.grant.token, cause }
    }
}

/// A nonce for one acquisition.
pub(super) fn draw_owner() -> Owner {
    loop {
        if let Some(owner) = Owner::new(fastrand::u64(..)) {
            return owner;
        }
    }
}

/// The end of a lock for its holder: taken from before the command was sent, less a margin, so that
/// it comes before the store's own.
pub(super) fn deadline(sent: Duration, ttl: Duration) -> Duration {
    sent + ttl - (ttl / 10).max(Duration::from_millis(50))
}

/// A third of the time to live, so that two renewals may fail; less some jitter, so that what was
/// acquired together is not renewed together for ever; and then at the keeper's last stroke before,
/// so that locks which came one by one are renewed in batches.
fn renew_at(sent: Duration, ttl: Duration) -> Duration {
    const STROKES: u32 = 24;
    let due = sent + (ttl / 3).mul_f64(1.0 - 0.1 * fastrand::f64());
    let since_stroke = due.as_nanos() % (ttl / STROKES).as_nanos();
    due - Duration::from_nanos(since_stroke as u64)
}
