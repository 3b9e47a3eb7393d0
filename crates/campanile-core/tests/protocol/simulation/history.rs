//! What happened in a simulation, in order.

use std::fmt;

use campanile_core::Grant;

use crate::step_properties::Step;

/// All events, each with the time that had elapsed.
#[derive(Clone, Default)]
pub(crate) struct History(Vec<(u64, Event)>);

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A command arrived at the store.
    Stepped { key: usize, step: Box<Step> },
    /// A client believes that it holds the lock, until so much time has elapsed.
    LockHeld { key: usize, client: usize, grant: Grant, until: u64 },
    /// The handler had its effect.
    Effect { key: usize, grant: Grant },
    /// The dead letter was published.
    DeadLetter { key: usize, grant: Grant },
    /// A client ends its run, before it tells the store.
    RunEnded { grant: Grant, ending: Ending },
    /// A client forgets all.
    Crashed { client: usize },
    /// The store's clock jumped.
    ClockJumped { forward: bool },
    /// The entry's retention is over.
    Expired { key: usize },
    /// The store lost its last writes.
    Restored,
}

/// How a client means its run to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Done, or given up for good: nothing may come after it.
    Final,
    /// Failed or given up: another run may come.
    Retryable,
}

impl History {
    pub(super) fn push(&mut self, elapsed: u64, event: Event) {
        self.0.push((elapsed, event));
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = &(u64, Event)> {
        self.0.iter()
    }

    /// Every command that arrived, with the key it was for.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (usize, &Step)> {
        self.0.iter().filter_map(|(_, event)| match event {
            Event::Stepped { key, step } => Some((*key, &**step)),
            _ => None,
        })
    }
}

/// One line for each event; the entries follow from the commands.
impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (elapsed, event) in &self.0 {
            match event {
                Event::Stepped { key, step } => {
                    let Step { now, operation, reply, .. } = &**step;
                    writeln!(f, "{elapsed:>14} key {key} at {now}: {operation:?} -> {reply:?}")?;
                }
                _ => writeln!(f, "{elapsed:>14} {event:?}")?,
            }
        }
        Ok(())
    }
}
