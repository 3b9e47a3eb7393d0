//! Two runs of a key: why the second one may follow the first, and whether they may overlap.

use super::faults::Unrenewed;
use super::index::{Index, Run};
use super::times::{any_within, first_within};
use crate::{Cause, Event, How, Outcome};

/// How many faults a violation shows at most.
const MAX_FAULTS: usize = 10;

/// A run of a key and a later one, with all that may explain the later one.
pub(super) struct Pair<'a> {
    index: &'a Index<'a>,
    first: &'a Run,
    next: &'a Run,
    /// An operator reopened the key between the two.
    pub(super) is_reopened: bool,
    is_unguarded: bool,
    is_unlocked: bool,
    /// What says that the key was FAILED between the two.
    given_up: Option<usize>,
    /// The transaction was rolled back, and the handler ran again under the same lock.
    pub(super) is_rerun: bool,
    /// What says that the first run is recorded in the store.
    recorded: Option<usize>,
    /// Why the second run began although its lock had ended.
    began_late: Option<Cause>,
    /// When the first run may have lost its lock because it was not renewed.
    expiring: (u64, u64),
    unrenewed: Option<Unrenewed>,
    pub(super) lost_writes: bool,
    pub(super) evicted: bool,
}

impl<'a> Pair<'a> {
    pub(super) fn new(index: &'a Index<'a>, first: &'a Run, next: &'a Run) -> Self {
        let key = &index.keys[first.key];
        let (from, until) = (first.began, next.began);
        let recorded = recorded(index, first, until);
        let lock_ttl = index.faults.lock_ttl;
        // The lock was granted before, but it was renewed since if that was long before.
        let locked = if recorded.is_some() { from } else { from.saturating_sub(lock_ttl) };
        let acknowledged = first.processed().map_or(until, |(at, _)| at.min(until)).max(from);
        let lock_end = lock_end(index, first).map_or(until, |at| at.min(until));
        let expiring =
            (lock_end.saturating_sub(lock_ttl), lock_end.saturating_add(lock_ttl).min(until));
        Self {
            index,
            first,
            next,
            is_reopened: any_within(&key.reopened, from, until),
            is_unguarded: first.token.is_none() || next.token.is_none(),
            is_unlocked: any_within(&key.unlocked, locked, until),
            given_up: given_up(index, first, until),
            is_rerun: is_rerun(first, next),
            recorded,
            began_late: began_late(index, first, next),
            expiring,
            unrenewed: index.faults.unrenewed(first.process, expiring.0, expiring.1),
            lost_writes: index.faults.lost_writes(locked, acknowledged),
            evicted: index.faults.evicted(locked, until),
        }
    }

    /// Finds why the second run may have begun. The first cause that holds, in this order.
    pub(super) fn cause(&self) -> Option<Cause> {
        if self.is_reopened {
            return Some(Cause::Reopened);
        }
        if self.is_unguarded {
            return Some(Cause::Unguarded);
        }
        if self.began_late.is_some() {
            return self.began_late;
        }
        if self.is_rerun {
            return Some(Cause::RolledBack);
        }
        let is_settled = self.recorded.is_some() || self.given_up.is_some();
        let unsettled = if is_settled { None } else { self.cause_of_unsettled() };
        unsettled
            .or(self.lost_writes.then_some(Cause::StoreLostWrites))
            .or(self.evicted.then_some(Cause::StoreEvicted))
    }

    /// Finds why a run that is not recorded, and not given up, was followed by another.
    fn cause_of_unsettled(&self) -> Option<Cause> {
        let Self { first, next, .. } = self;
        let end = first.end.filter(|end| end.at <= next.began);
        let has_ended = |how| end.is_some_and(|end| end.how == how);
        let has_lost_lock = end.is_some_and(|end| end.has_lost_lock);
        if has_ended(How::Error) {
            return Some(Cause::Failed);
        }
        if first.is_invisible && has_ended(How::Ok) {
            return Some(Cause::RolledBack);
        }
        let killed = self.index.killed(first);
        let was_killed = killed.is_some_and(|at| at <= next.began);
        let lock_ttl = self.index.faults.lock_ttl;
        // After an answer, at most the lock's time to live was left to record the success.
        let answered = first.answer.map(|(_, at, _)| at.saturating_add(lock_ttl));
        let was_recording = || answered.is_none_or(|at| killed.is_some_and(|killed| killed <= at));
        if was_killed && (first.end.is_none() || has_ended(How::Ok) && was_recording()) {
            let has_shown = first.effect.is_some() || first.end.is_some();
            let had_effect = has_shown && !first.is_invisible;
            return Some(match had_effect {
                true => Cause::KilledAfterEffect,
                false => Cause::KilledBeforeEffect,
            });
        }
        if has_ended(How::Dropped) && !has_lost_lock {
            return Some(Cause::Dropped);
        }
        if let (Some(end), Some((Outcome::Dropped, ..)), Some(until)) =
            (end, first.answer, answered)
            && self.index.faults.was_away(first.process, end.at, until.min(next.began).max(end.at))
        {
            return Some(Cause::DroppedAfterSuccess);
        }
        if self.is_unlocked {
            return Some(Cause::Unlocked);
        }
        if let Some(unrenewed) = self.unrenewed {
            return Some(match unrenewed {
                Unrenewed { suspended: 1.., .. } => Cause::Suspended,
                Unrenewed { unavailable: 1.., .. } => Cause::StoreUnavailable,
                Unrenewed { cut_off: 1.., .. } => Cause::NetworkCut,
                _ => Cause::ClockStepped,
            });
        }
        // The handler begins after its lock was requested.
        let max_hold = self.index.history.settings.max_hold;
        let shortest = max_hold.map(|max_hold| max_hold.saturating_sub(lock_ttl));
        let held = end.map(|end| end.at.saturating_sub(first.began));
        let was_long = shortest.is_some_and(|shortest| held.is_some_and(|held| held >= shortest));
        (has_ended(How::Dropped) && was_long).then_some(Cause::MaxHold)
    }

    /// Checks whether the second run may begin before the first is over.
    pub(super) fn may_overlap(&self) -> bool {
        let has_lost_lock = || {
            let paused = |unrenewed: Unrenewed| unrenewed.suspended > 0 || unrenewed.stepped > 0;
            self.is_unlocked || self.unrenewed.is_some_and(paused)
        };
        self.began_late.is_some()
            || self.lost_writes
            || self.evicted
            || (self.recorded.is_none() && has_lost_lock())
    }

    /// Checks whether the entry of the second run may know nothing of the first run.
    pub(super) fn may_forget(&self) -> bool {
        self.is_reopened || self.lost_writes || self.evicted
    }

    /// Lists the events of the two runs, and the faults when the lock of the first one ended.
    pub(super) fn events(&self) -> impl Iterator<Item = usize> {
        let Self { index, first, next, expiring: (from, until), .. } = self;
        let first_process = &index.history.processes[first.process].name;
        let may_matter = move |event: &usize| match &index.history.events[*event].event {
            Event::Fault(fault) => fault.kind.process().is_none_or(|name| name == first_process),
            _ => false,
        };
        let faults = index.faults.ending(*from, *until).filter(may_matter).take(MAX_FAULTS);
        let faults = faults.chain(index.faults.last_kill(first.process, next.began));
        let settled = [self.recorded, self.given_up].into_iter().flatten();
        first.events().chain(settled).chain(faults).chain(next.events())
    }

    /// Says why nothing explains the second run, after its key.
    pub(super) fn contradiction(&self) -> &'static str {
        match (self.recorded, self.given_up) {
            (Some(_), _) => "ran again, although it was completed",
            (None, Some(_)) => "ran again, although it was given up",
            (None, None) => "ran again, and nothing explains it",
        }
    }

    /// Checks whether the lock of the first run may have expired before the second began.
    pub(super) fn may_expire(&self) -> bool {
        self.unrenewed.is_some()
    }
}

/// Finds why a run began only after another one, which was granted the lock later, or after the key was
/// given up: its lock had ended, and that was not noticed yet. `None` if it did not, or was recorded.
pub(super) fn began_late(index: &Index<'_>, first: &Run, next: &Run) -> Option<Cause> {
    let (Some(first_token), Some(token)) = (first.token, next.token) else { return None };
    let has_ended = token < first_token || given_up(index, first, next.began).is_some();
    let is_recorded = next.processed().is_some() || !next.visible.is_empty();
    if !has_ended || is_recorded {
        return None;
    }
    let Index { faults, keys, .. } = index;
    let (from, until) = (next.began.saturating_sub(faults.lock_ttl), next.began);
    if faults.was_suspended(next.process, from, until) {
        Some(Cause::Suspended)
    } else if faults.was_stepped(from, until) {
        Some(Cause::ClockStepped)
    } else if any_within(&keys[next.key].unlocked, from, until) {
        Some(Cause::Unlocked)
    } else if faults.lost_writes(from, until) {
        Some(Cause::StoreLostWrites)
    } else {
        faults.evicted(from, until).then_some(Cause::StoreEvicted)
    }
}

/// Checks whether a run belongs to the same delivery as another, under the same lock. Of the
/// transactions of a lock, at most one is committed; the first may be committed late.
fn is_rerun(first: &Run, next: &Run) -> bool {
    let delivery = |run: &Run| (run.process, run.record, run.delivery, run.token, run.attempt);
    next.token.is_some()
        && delivery(first) == delivery(next)
        && (first.is_invisible || next.is_invisible)
}

/// Finds when a run needed its lock no longer: at its answer, its end without a success, or the end of
/// its process.
fn lock_end(index: &Index<'_>, run: &Run) -> Option<u64> {
    let answered = run.answer.map(|(_, at, _)| at);
    let ended = || run.end.filter(|end| end.how != How::Ok).map(|end| end.at);
    answered.or_else(ended).or_else(|| index.killed(run))
}

/// Finds what says that the key was FAILED between the begin of a run and this time.
fn given_up(index: &Index<'_>, first: &Run, until: u64) -> Option<usize> {
    let key = &index.keys[first.key];
    let given_up = first_within(&key.given_up, first.began, until)?;
    (!index.may_be_stale(key, until)).then_some(given_up)
}

/// Finds what says that the success of a run is in the store when another begins.
fn recorded(index: &Index<'_>, run: &Run, until: u64) -> Option<usize> {
    let processed = run.processed().map(|(_, event)| event);
    if let Some(event) = processed.or(run.visible.first().copied()) {
        return Some(event);
    }
    let success = run.success()?;
    let key = &index.keys[run.key];
    let completed = key.completed.partition_point(|(token, _)| *token < run.token);
    let completed = key.completed.get(completed).filter(|(token, _)| *token == run.token);
    let duplicate = || {
        let event = first_within(&key.duplicates, success, until)?;
        (!index.may_be_stale(key, index.history.events[event].event.at())).then_some(event)
    };
    completed.map(|(_, event)| *event).or_else(duplicate)
}
