//! The faults of a situation.

use super::delivery::Phase;
use super::trial::Observed;

/// A fault of an attempt at a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// The index of the record.
    pub(super) record: usize,
    /// The number of the attempt, starting at 1.
    pub(super) attempt: usize,
    /// The number of the await or of the call of the store, starting at 1. Zero after the completion.
    pub(super) at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The record is delivered again after its completion.
    Repeat,
    /// The stack's future is dropped at an await.
    Drop,
    /// The process is killed at an await.
    Kill,
    /// The process is suspended at an await, for longer than its lock.
    Suspend,
    /// Another process gets the lock while the handler is at an await.
    TakeOver,
    /// The store is unavailable from an await on, and the process is killed if it still waits for the store
    /// after the lock has expired.
    Outage,
    /// A call of the store is not applied, and answered with an error.
    Refuse,
    /// A call of the store is applied, and answered with an error.
    LoseReply,
}

use Kind::{Drop, Kill, LoseReply, Outage, Refuse, Repeat, Suspend, TakeOver};

/// Where a kind of faults occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Await,
    Call,
    Completion,
}

impl Kind {
    pub(super) fn place(self) -> Place {
        match self {
            Drop | Kill | Suspend | TakeOver | Outage => Place::Await,
            Refuse | LoseReply => Place::Call,
            Repeat => Place::Completion,
        }
    }

    fn is_possible_in(self, phase: Phase) -> bool {
        match self {
            // Without a lock, nothing can be taken over, and with its result recorded, nothing runs.
            Suspend | TakeOver => phase == Phase::Running,
            Outage => phase != Phase::Settling,
            _ => true,
        }
    }
}

/// Lists the faults that are possible in what was observed, the simplest first: in the first attempt at
/// each record, or in the second one after this fault.
pub(super) fn possible(observed: &[Observed], after: Option<Fault>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for kind in [Repeat, Drop, Kill, Refuse, LoseReply, Outage, Suspend, TakeOver] {
        for (record, observed) in observed.iter().enumerate() {
            let number = if after.is_some_and(|fault| fault.record == record) { 2 } else { 1 };
            let Some(attempt) = observed.attempts.get(&number) else { continue };
            let at: Vec<usize> = match kind.place() {
                Place::Await => {
                    let awaits = attempt.awaits.iter().enumerate();
                    let awaits = awaits.filter(|(_, it)| kind.is_possible_in(it.phase));
                    awaits.map(|(index, _)| index + 1).collect()
                }
                Place::Call => (1..=attempt.calls).collect(),
                Place::Completion => vec![0],
            };
            faults.extend(at.into_iter().map(|at| Fault { kind, record, attempt: number, at }));
        }
    }
    faults
}
