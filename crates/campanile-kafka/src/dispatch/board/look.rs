//! The look that is taken about once a second, for those who ask from outside and for those whom
//! nobody tells: partitions that stand still.

use std::collections::HashMap;

use tokio::time::Instant;

use super::Board;
use crate::dispatch::stalls::{Doing, Moved, Still};
use crate::dispatch::strand::{Head, State, StrandId};
use crate::dispatch::trouble::STORE;
use crate::retry_topics::origin;
use crate::slot::SlotId;
use crate::vitals::Vitals;

/// The most stalls that one look tells, so that a thousand partitions do not fill a log.
const MOST: usize = 10;

impl Board {
    /// The intake asks whether the dispatcher works.
    pub(in crate::dispatch) fn look(&mut self) {
        let now = Instant::now();
        let (mut told, mut untold) = (0, 0);
        for (slot, id) in self.oldest() {
            let still = self.see(slot, id, now);
            if !self.stalls.is_due(slot, still) {
                continue;
            }
            let Some(waits_for) = self.stalled_by(id) else {
                continue;
            };
            self.stalls.told(slot, still);
            if told < MOST {
                told += 1;
                self.tell_stall(id, waits_for, still);
            } else {
                untold += 1;
            }
        }
        if untold > 0 {
            tracing::warn!(partitions = untold, "so many more partitions stand still");
        }
        let (moved, oldest) = self.stalls.end(now);
        self.tell_moved(&moved);
        self.policies.retentions.go_on();
        self.vitals().answer(self.store.is_found_down(), oldest);
    }

    pub(in crate::dispatch) fn vitals(&self) -> &Vitals {
        self.gate.vitals()
    }

    /// Looks for how long the entries of a lane's records are kept.
    pub(super) fn see_retention(&mut self, id: StrandId) {
        let record = &self.head(id).record;
        // Without a layer nobody ever says it.
        if let Some(kept) = record.entry_kept() {
            let topic = record.coordinates().topic.clone();
            self.lane(id).entries_known = true;
            self.policies.retentions.see(&topic, kept);
        }
    }

    /// The strand with the oldest unfinished record of each partition.
    fn oldest(&mut self) -> HashMap<SlotId, StrandId> {
        let mut oldest: HashMap<SlotId, (i64, StrandId)> = HashMap::new();
        for (id, strand) in self.strands.iter_mut() {
            let offset = strand.head.record.offset();
            let first = oldest.entry(strand.slot).or_insert((offset, id));
            if offset < first.0 {
                *first = (offset, id);
            }
        }
        oldest.into_iter().map(|(slot, (_, id))| (slot, id)).collect()
    }

    fn see(&mut self, slot: SlotId, id: StrandId, now: Instant) -> Still {
        let head = self.head(id);
        let troubles = head.trouble.as_ref().map_or(0, |trouble| trouble.times);
        let doing = match head.state {
            State::Waiting(wait) => Doing::Waiting(wait),
            _ if head.is_running() => Doing::Running { troubles },
            _ => Doing::Due,
        };
        let offset = head.record.offset();
        self.stalls.see(slot, offset, doing, now)
    }

    /// What a record waits for, unless that is as it should be.
    fn stalled_by(&mut self, id: StrandId) -> Option<&'static str> {
        if self.lane(id).draining {
            return None;
        }
        let free = self.busy < self.policies.max_in_flight;
        let (paused, store_down) = (!self.gate.is_open(), self.store.is_down());
        match self.head(id) {
            head if head.is_running() => Some("its handler"),
            Head { state: State::Waiting(_), trouble, .. } => {
                // Without any it is a copy in a retry topic, whose time has not come.
                trouble.as_ref().map(|trouble| trouble.waits_for)
            }
            _ if paused => Some("the consumer's resume"),
            _ if store_down => Some(STORE),
            // Others are at work, as many as may be.
            _ if !free => None,
            _ => Some("its service to be ready"),
        }
    }

    fn tell_stall(&mut self, id: StrandId, waits_for: &str, still: Still) {
        let slot = self.lane(id).slot();
        let lag = slot.extent.lag(slot.mark());
        let Head { record, trouble, .. } = self.head(id);
        tracing::warn!(
            record = %record.coordinates(),
            origin = origin(record),
            lag,
            stands_still = ?still.oldest,
            waits_for,
            waits = ?still.doing,
            error = trouble.as_ref().map(|trouble| &*trouble.error),
            "a partition stands still: its oldest record is not finished"
        );
    }

    fn tell_moved(&self, moved: &[Moved]) {
        for (slot, after) in moved {
            // One that was revoked is somebody else's.
            if let Some(lane) = self.lanes.get(slot) {
                tracing::info!(partition = %lane.slot(), ?after, "a partition goes on");
            }
        }
    }
}
