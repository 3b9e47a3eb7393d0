//! Failovers of a store, each of which loses what the replica had not received.

use std::time::Duration;

use campanile_test::history::{FaultKind, HistoryRecorder};

use super::RECONNECT;
use crate::faults::Injector;

/// How far behind a replica may be, on a busy machine.
const MAX_REPLICA_LAG: Duration = Duration::from_secs(1);

/// The number of takeovers so far, as the servers count them.
#[derive(Default)]
pub(super) struct Takeovers {
    epoch: u64,
    /// When the servers were asked.
    asked: u64,
}

impl Takeovers {
    /// Notes the count after a takeover that the campaign has recorded.
    pub(super) fn set(&mut self, asked: u64, epoch: u64) {
        *self = Self { epoch, asked };
    }

    /// Records that there were takeovers since the last time, if the count is another one.
    pub(super) fn record(&mut self, recorder: &HistoryRecorder, asked: u64, epoch: u64) {
        if epoch != self.epoch {
            println!("a takeover by itself, between {} and {}", self.asked, recorder.now());
            let until = recorder.now() + RECONNECT.as_micros() as u64;
            for kind in [FaultKind::StoreUnavailable, FaultKind::StoreLostWrites] {
                recorder.fault(self.asked, Some(until), kind);
            }
        }
        self.set(asked, epoch);
    }
}

/// Injects a fault that leads to a takeover, which the closure awaits.
pub(super) fn inject(
    name: &'static str,
    injector: &mut Injector<'_>,
    take_over: impl FnOnce(&mut Injector<'_>),
) {
    if !injector.faults.allows(name) {
        return;
    }
    let from = injector.now().saturating_sub(MAX_REPLICA_LAG.as_micros() as u64);
    injector.inject(name, &FaultKind::StoreUnavailable, RECONNECT, take_over);
    injector.record(from, RECONNECT, &FaultKind::StoreLostWrites);
}
