//! The events of a simulation, in order.

use std::fmt;

use campanile_core::Grant;

use crate::step_properties::Step;

/// All events, each with the elapsed time.
#[derive(Clone, Default)]
pub(crate) struct History(Vec<(u64, Event)>);

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A command arrived at the store.
    Stepped { key: usize, step: Box<Step> },
    /// A client believes that it holds the lock until this elapsed time.
    LockHeld { key: usize, client: usize, grant: Grant, until: u64 },
    /// The handler had its effect.
    Effect { key: usize, grant: Grant },
    /// The dead letter was published.
    DeadLetter { key: usize, grant: Grant },
    /// A client ends its run, before it reports the result to the store.
    RunEnded { grant: Grant, ending: Ending },
    /// A client loses all its state.
    Crashed { client: usize },
    /// The store's clock jumped.
    ClockJumped { forward: bool },
    /// The retention of the entry expires.
    Expired { key: usize },
    /// The store lost its last writes.
    Restored,
}

/// The intended ending of a client's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Completed or given up: nothing may follow.
    Final,
    /// Failed or released: another run may follow.
    Retryable,
}

impl History {
    pub(super) fn push(&mut self, elapsed: u64, event: Event) {
        self.0.push((elapsed, event));
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = &(u64, Event)> {
        self.0.iter()
    }

    /// Every command that arrived, with its key.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (usize, &Step)> {
        self.0.iter().filter_map(|(_, event)| match event {
            Event::Stepped { key, step } => Some((*key, &**step)),
            _ => None,
        })
    }
}

/// Prints one line per event. The entries are left out, as they follow from the commands.
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
