//! One acquisition, from the first command to the last answer.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    Clock, Command, FencingToken, Fingerprint, Grant, Interrupt, LockControl, LockLost, LostCause,
    Operation, Owner, StoreKey,
};
use tokio::sync::oneshot;

use super::ends::{End, Ends, Known};
use super::request::{Acquire, Acquisition, SettleResult, Settlement, Terms};
use super::settled::Settled;

/// One acquisition of a key. While there is a slot, the key is not acquired a second time here, and at
/// most one command for it is in flight: so a renewal has ended before the settlement is sent.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: StoreKey,
    pub(super) terms: Arc<Terms>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) owner: Owner,
    pub(super) phase: Phase,
    pub(super) command: CommandState,
    /// What is set in the keeper's timers.
    pub(super) timer: Option<Duration>,
    /// Dropped with the slot, which wakes those who wait for the key.
    settled: Option<(oneshot::Sender<()>, Settled)>,
    /// How the acquisition has ended, where that is known.
    end: Option<End>,
    /// Dropped with the slot, which wakes the driver.
    _interrupt: Option<Interrupt>,
}

/// Where the slot's command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandState {
    /// There is none.
    Idle,
    /// In one of the keeper's queues.
    Queued,
    /// In a call that is not answered.
    InFlight,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The acquire is not answered yet.
    Acquiring {
        reply: oneshot::Sender<Acquisition>,
        /// Whether it may have been sent: its call was dropped, and it is to be sent again.
        was_sent: bool,
    },
    /// There is a [`HeldLock`](super::HeldLock) of it.
    Held(Held),
    /// The grant's last command is not answered yet.
    Settling(Settling),
    /// The acquire was not answered, and may have been granted. Its nonce is used for nothing but the
    /// cancel any more: a late copy of that would free a lock which was granted to the same nonce.
    Cancelling {
        tries: u32,
        until: Duration,
        /// A request for the key that came meanwhile, and acquires it once the cancel is answered.
        next: Option<Acquire>,
    },
    /// Over, but for the answer of a command that is on its way.
    Ended,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) control: LockControl,
    pub(super) grant: Grant,
    pub(super) attempt: u16,
    /// When the next renewal is due.
    pub(super) renew_at: Duration,
    /// The ceiling for one lock.
    pub(super) hold_until: Duration,
    /// It was noticed that the lock is lost.
    pub(super) is_lost: bool,
}

#[derive(Debug)]
pub(super) struct Settling {
    pub(super) grant: Grant,
    pub(super) attempt: u16,
    pub(super) settlement: Settlement,
    /// `None`: the future was dropped.
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
        let Acquire { key, owner, terms, fingerprint, interrupt, reply } = acquire;
        Self {
            key,
            terms,
            fingerprint,
            owner,
            phase: Phase::Acquiring { reply, was_sent: false },
            command: CommandState::Idle,
            timer: None,
            settled: None,
            end: None,
            _interrupt: interrupt,
        }
    }

    /// Returns a signal of the slot's end.
    pub(super) fn settled(&mut self) -> Settled {
        self.settled.get_or_insert_with(Settled::pair).1.clone()
    }

    /// Notes how the acquisition has ended.
    pub(super) fn ended(&mut self, known: Known, clock: &Clock) {
        // Mostly nothing waits for it.
        if self.settled.is_some() {
            self.end = Some(End::new(known, self.fingerprint, clock.now()));
        }
    }

    /// Publishes how the acquisition has ended, before the slot is dropped.
    pub(super) fn publish_end(&mut self, ends: &mut Ends) {
        if let (Some((_, settled)), Some(end)) = (&self.settled, self.end.take())
            && let Some(end) = settled.set_end(end)
        {
            ends.insert(&self.key, end);
        }
    }

    /// Whether the request was dropped before its acquire was sent.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(&self.phase, Phase::Acquiring { reply, was_sent: false } if reply.is_closed())
    }

    /// Returns the command that the phase asks for.
    pub(super) fn next_command(&self, floor: FencingToken) -> Option<(What, Command)> {
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
            Phase::Held(held) if held.control.cause().is_some() => return None,
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
            control: LockControl::new(key, grant, attempt.into(), clock.clone(), deadline),
            grant,
            attempt,
            renew_at: renew_at(sent, ttl),
            hold_until: sent + max_hold,
            is_lost: false,
        }
    }

    pub(super) fn renewed(&mut self, sent: Duration, ttl: Duration) {
        self.control.renewed(deadline(sent, ttl));
        self.renew_at = renew_at(sent, ttl);
    }

    /// Returns when the lock has to be checked next; never, once it is lost.
    pub(super) fn next_check(&self, renewing: bool) -> Option<Duration> {
        if self.is_lost || self.control.cause().is_some() {
            return None;
        }
        let end = self.control.deadline().min(self.hold_until);
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

    /// Returns the error for a grant that, as the store says, had ended otherwise.
    pub(super) fn lost(&self, key: &StoreKey) -> LockLost {
        let cause = LostCause::Superseded;
        LockLost { key: key.key().clone(), token: self.grant.token, cause }
    }
}

/// Draws the nonce of one acquisition, from the operating system's random numbers.
///
/// An acquire with the nonce of a live lock is granted that lock, so no two acquisitions may ever share
/// one. A generator of this process would not do: its seed may be shared by machines that boot together,
/// and its state is shared by all copies of a virtual machine's snapshot. So nothing is drawn in advance.
pub(super) fn draw_owner() -> Owner {
    loop {
        let nonce = getrandom::u64().expect("the operating system has random numbers");
        if let Some(owner) = Owner::new(nonce) {
            return owner;
        }
    }
}

/// Returns the end of a lock for its holder: taken from before the command was sent, less a margin, so that
/// it comes before the store's own.
pub(super) fn deadline(sent: Duration, ttl: Duration) -> Duration {
    sent + ttl - (ttl / 10).max(Duration::from_millis(50))
}

/// Returns when to renew: after a third of the time to live, so that two renewals may fail; less some
/// jitter, so that what was acquired together is not renewed together for ever; then rounded down to a
/// multiple of a 24th, so that locks which were acquired one by one are renewed in batches.
fn renew_at(sent: Duration, ttl: Duration) -> Duration {
    let due = sent + (ttl / 3).mul_f64(1.0 - 0.1 * fastrand::f64());
    let beyond = due.as_nanos() % (ttl / 24).as_nanos();
    due - Duration::from_nanos(beyond as u64)
}
