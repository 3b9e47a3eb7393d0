//! The recorder of a run.

use campanile_core::{LockHandle, LostCause};
use campanile_history::{Effect, End, Event, How};

use super::HistoryRecorder;

/// Records the effect and the end of a run. If it is dropped before the end is recorded, the handler
/// was dropped, or has panicked.
#[derive(Debug)]
pub struct RunRecorder {
    recorder: HistoryRecorder,
    run: u64,
    lock: Option<LockHandle>,
    has_ended: bool,
}

/// Identifies a run in the extensions of its request.
#[derive(Clone, Debug)]
pub(super) struct RunId(pub(super) u64);

impl RunRecorder {
    pub(super) fn new(recorder: HistoryRecorder, run: u64, lock: Option<LockHandle>) -> Self {
        Self { recorder, run, lock, has_ended: false }
    }

    pub(super) fn id(&self) -> RunId {
        RunId(self.run)
    }

    /// Records that the handler has had its effect.
    pub fn effect(&self) {
        self.recorder.record(&Event::Effect(Effect { at: self.recorder.now(), run: self.run }));
    }

    /// Records that the handler has returned.
    pub fn end<T, E>(mut self, result: &Result<T, E>) {
        self.has_ended = true;
        self.record_end(if result.is_ok() { How::Ok } else { How::Error });
    }

    fn record_end(&self, how: How) {
        let loss = self.lock.as_ref().and_then(|lock| lock.check().err());
        // After the end of its attempt, the lock was held until then.
        let lost = loss.filter(|loss| loss.cause != LostCause::Ended).map(|loss| loss.to_string());
        let (at, run) = (self.recorder.now(), self.run);
        self.recorder.record(&Event::End(End { at, run, how, lost }));
    }
}

impl Drop for RunRecorder {
    fn drop(&mut self) {
        if !self.has_ended {
            let has_panicked = std::thread::panicking();
            self.record_end(if has_panicked { How::Error } else { How::Dropped });
        }
    }
}
