//! The store's side of an observed request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::telemetry::ObservedVerdict;
use campanile_core::{Coordinates, Details, Fingerprint};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::sleep;

use super::report::{Finding, Report};
use crate::keeper::{Acquisition, HeldLock, Settlement, wait_at_most};

/// How long to wait after an acquire that the store has not answered.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How a handler ended.
#[derive(Debug)]
pub(super) enum End {
    Succeeded,
    /// Failed, with this text; panicked; or was dropped.
    Failed(Box<str>),
    /// Dropped by the driver.
    Interrupted,
}

impl End {
    fn settlement(self) -> Settlement {
        match self {
            Self::Succeeded => Settlement::Complete { reply: None },
            // Without a backoff, for which a layer that guards the key later would have to wait.
            Self::Failed(error) => Settlement::Fail { delay: Duration::ZERO, last: false, error },
            Self::Interrupted => Settlement::Release { ran: true },
        }
    }
}

/// Where both sides of a request meet: the one that comes last settles the lock.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<ObservationState>,
    /// Notified once the handler has ended.
    ended: Notify,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum ObservationState {
    Running(Option<HeldLock>),
    Ended(End),
    Settled,
}

impl Shared {
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Self {
        let state = Mutex::new(ObservationState::Running(None));
        Self { state, ended: Notify::new(), _permit: permit }
    }

    /// The handler has ended. Settles the lock if it is held.
    pub(super) fn end(&self, end: End) {
        let previous = {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, ObservationState::Settled) {
                ObservationState::Running(Some(held)) => Some((held, end)),
                _ => {
                    *state = ObservationState::Ended(end);
                    None
                }
            }
        };
        if let Some((held, end)) = previous {
            settle(held, end);
        }
        self.ended.notify_one();
    }

    /// The lock is held. Settles it if the handler has ended.
    fn hold(&self, held: HeldLock) {
        // The effect of a handler stays, whatever happens to the lock.
        held.control().set_effect_possible();
        let ended = {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, ObservationState::Settled) {
                ObservationState::Ended(end) => Some((held, end)),
                _ => {
                    *state = ObservationState::Running(Some(held));
                    None
                }
            }
        };
        if let Some((held, end)) = ended {
            settle(held, end);
        }
    }

    /// Waits until the handler has ended. Returns whether it has succeeded.
    async fn has_succeeded(&self) -> bool {
        loop {
            match &*self.lock() {
                ObservationState::Running(_) => {}
                ObservationState::Ended(end) => return matches!(end, End::Succeeded),
                ObservationState::Settled => return false,
            }
            self.ended.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ObservationState> {
        // Only this file's code runs under the mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands the settlement to the keeper, which repeats it until the store answers.
fn settle(mut held: HeldLock, end: End) {
    held.set_drop_settlement(end.settlement());
}

/// Acquires the lock while the handler runs, and reports the answer.
pub(super) struct Observation {
    pub(super) report: Report,
    pub(super) shared: Arc<Shared>,
    pub(super) fingerprint: Option<Fingerprint>,
    /// The position of the original record, if the record is a copy.
    pub(super) origin: Option<Coordinates>,
    /// Whether another handler ran for the key in this process when this one started.
    pub(super) overlaps: bool,
}

impl Observation {
    pub(super) async fn run(self) {
        let Self { mut report, shared, fingerprint, origin, overlaps } = self;
        let parts = report.parts.clone();
        // Kept until the next acquire is answered, which then needs no command.
        let mut waited = None;
        loop {
            let (keeper, settings, key) = (&parts.keeper, &parts.settings, report.key.clone());
            let answer = keeper.acquire(key, settings, fingerprint, &report.site, None).await;
            drop(waited.take());
            // How long the key will be blocked.
            let (finding, retry_after, settled) = match answer {
                Ok(Acquisition::Held(held)) => {
                    let attempt = held.lock_handle().attempt();
                    report.finish(parts.reporter.granted(attempt, overlaps));
                    return shared.hold(held);
                }
                // The previous run has ended, and its outcome is being recorded.
                Ok(Acquisition::Locked { settled: Some(settled), .. }) if !overlaps => {
                    waited = Some(settled.clone());
                    settled.await;
                    continue;
                }
                Ok(Acquisition::Locked { retry_after, settled }) => {
                    (Finding::of(ObservedVerdict::InProgress), retry_after, settled)
                }
                Ok(Acquisition::BackingOff { retry_after, .. }) => {
                    (Finding::of(ObservedVerdict::BackingOff), retry_after, None)
                }
                Ok(Acquisition::Duplicate { details, age, .. }) => {
                    let completed_at = details.as_ref().and_then(Details::coordinates);
                    let positions = [report.site.coordinates.as_ref(), origin.as_ref()];
                    return report.finish(Finding::duplicate(completed_at, positions, age));
                }
                Ok(Acquisition::AlreadyGivenUp { .. } | Acquisition::Exhausted { .. }) => {
                    return report.finish(Finding::of(ObservedVerdict::GivenUp));
                }
                Ok(Acquisition::Mismatch) => {
                    return report.finish(Finding::of(ObservedVerdict::Mismatch));
                }
                Ok(Acquisition::Unavailable(error)) => {
                    let is_outage = error.kind().is_outage();
                    report.finish(Finding::store_error(error));
                    // The acquire may have been granted, and only its reply lost. Success is therefore
                    // recorded later, as long as others can still be observed meanwhile.
                    if !is_outage || !shared.has_succeeded().await || !parts.has_room() {
                        return;
                    }
                    sleep(RETRY_INTERVAL).await;
                    continue;
                }
                // The keeper shuts down or has stopped.
                Ok(Acquisition::ShuttingDown) | Err(_) => return,
            };
            report.finish(finding);
            // The entry must not look as if its last run had never ended: if this one succeeds, it is
            // recorded as soon as the key is free, unless another run was recorded meanwhile.
            if !shared.has_succeeded().await {
                return;
            }
            waited = settled.clone();
            wait_at_most(settled, retry_after).await;
        }
    }
}
