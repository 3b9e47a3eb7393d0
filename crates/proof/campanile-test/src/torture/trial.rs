//! The trial of one situation: a world with its faults.

use std::collections::BTreeMap;
use std::error::Error;
use std::mem;
use std::time::Duration;

use campanile_core::error;

use super::delivery::{Acquire, Await, Delivery, Finished};
use super::fault::{Fault, Kind, Place};
use super::process::{Environment, Process};
use super::story::Story;
use super::world::World;

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// More than the attempts of a key, and the waits between them.
const MAX_DELIVERIES: usize = 100;

pub(super) struct Trial<'a, R> {
    pub(super) environment: Environment,
    world: &'a dyn World<R>,
    pub(super) requests: &'a [R],
    /// Those that have not occurred yet.
    pub(super) faults: Vec<Fault>,
    has_faults: bool,
    /// The number of records that must be given up without faults.
    given_up: usize,
    /// The last one gets the deliveries; each of the others has lost a lock to the one after it.
    pub(super) processes: Vec<Process<R>>,
    pub(super) records: Vec<RecordState>,
}

#[derive(Default)]
pub(super) struct RecordState {
    /// How often the lock of the record was granted.
    pub(super) grants: usize,
    /// Whether no attempt was left.
    pub(super) is_exhausted: bool,
    pub(super) acquire: Option<Acquire>,
    pub(super) story: Story,
    pub(super) last_error: String,
    /// As in [`Observed::attempts`].
    pub(super) attempts: BTreeMap<usize, Attempt>,
}

/// What happened in the first delivery with this number of an attempt.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) awaits: Vec<Await>,
    /// The number of calls of the store.
    pub(super) calls: usize,
}

/// What happened to a record.
#[derive(Debug)]
pub(super) struct Observed {
    /// The attempts by their numbers, starting at 1.
    pub(super) attempts: BTreeMap<usize, Attempt>,
    pub(super) finished: Finished,
}

/// What follows a delivery.
pub(super) enum Next {
    Finished(Finished),
    /// The record is delivered again after this time.
    Again(Duration),
    /// The stack has not answered in time.
    Stuck,
}

impl<'a, R: Clone> Trial<'a, R> {
    pub(super) fn new(
        environment: Environment,
        world: &'a dyn World<R>,
        requests: &'a [R],
        faults: &[Fault],
        given_up: usize,
    ) -> Self {
        let records = requests.iter().map(|_| RecordState::default()).collect();
        Self {
            environment,
            world,
            requests,
            faults: faults.to_vec(),
            has_faults: !faults.is_empty(),
            given_up,
            processes: Vec::new(),
            records,
        }
    }

    /// Runs the situation, beginning with this process, after what was observed without faults. If it
    /// fails, returns its story.
    pub(super) fn run(
        mut self,
        first: Process<R>,
        faultless: &[Observed],
    ) -> Result<Vec<Observed>, String> {
        let result = self.run_to_end(first, faultless);
        for process in self.processes.drain(..) {
            process.kill(None);
        }
        result.map_err(|reason| format!("{}: {reason}", self.story()))
    }

    fn run_to_end(
        &mut self,
        first: Process<R>,
        faultless: &[Observed],
    ) -> Result<Vec<Observed>, String> {
        if self.requests.is_empty() {
            return Err("there are no records".to_owned());
        }
        self.start(first)?;
        let limit = self.environment.of_time(60 * MINUTE, MINUTE);
        let mut observed = Vec::new();
        let mut given_up = 0;
        for record in 0..self.requests.len() {
            let Some(finished) = self.deliver(record, limit)? else {
                return Err(format!("the stack has not answered within {limit:?}"));
            };
            if let Finished::GivenUp(reason) = &finished {
                given_up += 1;
                self.add_given_up(record, reason, faultless.get(record))?;
            }
            let attempts = mem::take(&mut self.records[record].attempts);
            observed.push(Observed { attempts, finished });
        }
        if !self.has_faults && given_up != self.given_up {
            let (records, expected) = (self.records.len(), self.given_up);
            return Err(format!("{given_up} of {records} records given up, expected {expected}"));
        }
        // Tasks that the handlers have left behind end now.
        for process in &self.processes {
            process.finish_tasks();
        }
        let checked = self.process().run(async || self.world.check().await);
        checked.map_err(|error| describe(&*error))?;
        Ok(observed)
    }

    /// Notes that a record was given up. Fails if it must be completed.
    fn add_given_up(
        &mut self,
        record: usize,
        reason: &str,
        before: Option<&Observed>,
    ) -> Result<(), String> {
        let state = &mut self.records[record];
        match before.map(|observed| &observed.finished) {
            None if self.given_up == 0 => {
                Err(format!("{} was given up: {reason}", self.name(record)))
            }
            Some(Finished::Completed) => {
                state.story.add("given up");
                Err(match state.acquire {
                    Some(Acquire { max_attempts: max @ 1..3, .. }) if state.is_exhausted => {
                        format!(
                            "the record ran out of attempts; the stack allows {max} for each key, but \
                             this test needs at least three (`with_max_attempts`)"
                        )
                    }
                    _ => reason.to_owned(),
                })
            }
            _ => {
                state.story.add(format!("given up ({reason})"));
                Ok(())
            }
        }
    }

    /// Names a record by its key, or by its number if the key is unknown.
    fn name(&self, record: usize) -> String {
        let acquire = self.records[record].acquire.as_ref();
        acquire
            .and_then(|acquire| acquire.key.clone())
            .unwrap_or_else(|| format!("record {} of {}", record + 1, self.records.len()))
    }

    /// The process that gets the deliveries.
    pub(super) fn process(&self) -> &Process<R> {
        self.processes.last().expect("the first process has started")
    }

    pub(super) fn start(&mut self, mut process: Process<R>) -> Result<(), String> {
        let started = process.start(self.world);
        self.processes.push(process);
        started.map_err(|error| format!("the stack was not created: {}", describe(&*error)))
    }

    /// Kills the process, and starts another.
    pub(super) fn restart(&mut self, delivery: Delivery) -> Result<(), String> {
        self.processes.pop().expect("the first process has started").kill(Some(delivery));
        self.start(Process::new(&self.environment))
    }

    /// Delivers a record until it is finished. `None` if the stack has not answered in time.
    pub(super) fn deliver(
        &mut self,
        record: usize,
        limit: Duration,
    ) -> Result<Option<Finished>, String> {
        for _ in 0..MAX_DELIVERIES {
            match self.deliver_once(record, limit)? {
                Next::Finished(finished) => {
                    if self.take_fault(record, Place::Completion, 0).is_none() {
                        return Ok(Some(finished));
                    }
                    self.records[record].story.add("completed");
                }
                Next::Again(wait) => self.process().wait(wait),
                Next::Stuck => return Ok(None),
            }
        }
        let error = &self.records[record].last_error;
        Err(format!("not completed after {MAX_DELIVERIES} deliveries: {error}"))
    }

    /// Takes a fault that occurs now.
    pub(super) fn take_fault(&mut self, record: usize, place: Place, at: usize) -> Option<Kind> {
        let attempt = self.records[record].grants + 1;
        let index = self.faults.iter().position(|fault| {
            fault.record == record
                && fault.kind.place() == place
                && fault.at == at
                && (place == Place::Completion || fault.attempt == attempt)
        })?;
        Some(self.faults.remove(index).kind)
    }

    fn story(&self) -> String {
        let stories = self.records.iter().map(|record| &record.story).enumerate();
        let stories = stories.filter(|(_, story)| !story.is_empty());
        let stories = stories.map(|(index, story)| match self.records.len() {
            1 => story.to_string(),
            records => format!("record {} of {records} {story}", index + 1),
        });
        let without_faults = (!self.has_faults).then(|| "without a fault".to_owned());
        without_faults.into_iter().chain(stories).collect::<Vec<_>>().join("; ")
    }
}

/// Joins the texts of an error and its sources.
pub(super) fn describe(error: &(dyn Error + 'static)) -> String {
    error::sources(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
