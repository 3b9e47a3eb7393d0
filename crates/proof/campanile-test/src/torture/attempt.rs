//! One delivery in a trial, with its faults.

use std::time::Duration;

use campanile_core::{BoxError, Classify, Disposition};
use campanile_idempotency::{Defaults, IdempotencyError};
use tokio::time::timeout;

use super::delivery::{Answer, Await, Delivery, Finished, Progress};
use super::fault::{Kind, Place};
use super::process::Process;
use super::trial::{Attempt, MINUTE, Next, SECOND, Trial, describe};
use crate::faults::Fault as StoreFault;

/// A delivery that runs.
#[derive(Clone, Copy)]
struct Running {
    record: usize,
    /// The number of the attempt, if the lock is granted.
    attempt: usize,
    /// The index of its process.
    process: usize,
    limit: Duration,
}

/// How a delivery has ended.
enum End {
    Answered(Answer),
    /// Another process has finished the record.
    FinishedElsewhere(Finished),
    Dropped,
    Killed,
    Stuck,
}

impl<R: Clone> Trial<'_, R> {
    /// Delivers a record to the process.
    pub(super) fn deliver_once(&mut self, record: usize, limit: Duration) -> Result<Next, String> {
        let (attempt, process) = (self.records[record].grants + 1, self.processes.len() - 1);
        let running = Running { record, attempt, process, limit };
        self.records[record].story.add_delivery();
        let mut delivery = self.process().deliver(self.requests[record].clone());
        if let Some((at, fault)) = self.fault_of_call(running) {
            self.process().store().inject_nth(at, fault);
        }
        let end = self.run_with_fault(running, &mut delivery);
        self.end_delivery(running, &delivery);
        if let Ok(End::Killed) = end {
            self.restart(delivery)?;
            return Ok(Next::Again(Duration::ZERO));
        }
        self.processes[process].drop_delivery(delivery);
        Ok(match end? {
            End::Answered(Ok(finished)) => Next::Finished(finished),
            End::Answered(Err(error)) => self.next_after(running, error),
            End::FinishedElsewhere(finished) => Next::Finished(finished),
            End::Dropped | End::Killed => Next::Again(Duration::ZERO),
            End::Stuck => Next::Stuck,
        })
    }

    /// Runs a delivery, with the fault at one of its awaits, if there is one.
    fn run_with_fault(&mut self, running: Running, delivery: &mut Delivery) -> Result<End, String> {
        delivery.halt_at = self.fault_of_await(running);
        let woken = match self.run_delivery(running, delivery) {
            Some(Progress::Answered(answer)) => return Ok(End::Answered(answer)),
            Some(Progress::Halted(woken)) => woken,
            None => return Ok(End::Stuck),
        };
        let kind = self.take_fault(running.record, Place::Await, delivery.awaits.len());
        // Longer than the lock lives.
        let expired = delivery.acquire().map_or(MINUTE, |acquire| acquire.ttl) + SECOND;
        match kind.expect("the delivery halts only at a fault") {
            Kind::Drop => {
                self.add_event(running, "dropped", woken);
                Ok(End::Dropped)
            }
            Kind::Kill => {
                self.add_event(running, "killed", woken);
                Ok(End::Killed)
            }
            Kind::Outage => {
                self.add_event(running, "without the store", woken);
                Ok(self.run_without_store(running, delivery, 2 * expired))
            }
            Kind::Suspend => {
                self.add_event(running, "suspended", woken);
                // The other process waits until the lock has expired.
                self.take_over(running, delivery)
            }
            Kind::TakeOver => {
                self.add_event(running, "without its lock", woken);
                self.environment.time.set_store_forward(expired);
                self.take_over(running, delivery)
            }
            Kind::Repeat | Kind::Refuse | Kind::LoseReply => {
                unreachable!("these are not at an await")
            }
        }
    }

    /// Polls a delivery until it has halted or ended. `None` if it does not in time.
    fn run_delivery(&self, running: Running, delivery: &mut Delivery) -> Option<Progress> {
        let process = &self.processes[running.process];
        process.run(async || timeout(running.limit, delivery).await.ok())
    }

    /// Runs a delivery while the store is unavailable. The process is killed if the delivery then waits.
    fn run_without_store(
        &mut self,
        running: Running,
        delivery: &mut Delivery,
        duration: Duration,
    ) -> End {
        delivery.halt_at = None;
        self.processes[running.process].store().inject_always(StoreFault::Refuse);
        let limit = self.environment.of_time(duration, SECOND / 10);
        if let Some(Progress::Answered(answer)) =
            self.run_delivery(Running { limit, ..running }, delivery)
        {
            return End::Answered(answer);
        }
        self.records[running.record].story.add("killed");
        End::Killed
    }

    /// Lets another process handle the record, and then continues the delivery.
    fn take_over(&mut self, running: Running, delivery: &mut Delivery) -> Result<End, String> {
        let Running { record, attempt, .. } = running;
        self.records[record].grants = attempt;
        self.start(Process::new(&self.environment))?;
        // The handler there may wait for this one, for example for a row that this one has locked.
        let finished = self.deliver(record, self.environment.of_time(MINUTE, SECOND))?;
        self.records[record].story.add(format!("attempt {attempt} continued"));
        delivery.halt_at = None;
        let end = match self.run_delivery(running, delivery) {
            Some(Progress::Answered(answer)) => End::Answered(answer),
            _ => End::Stuck,
        };
        Ok(finished.map_or(end, End::FinishedElsewhere))
    }

    /// Finds the await at which this delivery halts.
    fn fault_of_await(&self, running: Running) -> Option<usize> {
        let Running { record, attempt, .. } = running;
        let faults = self.faults.iter().filter(|fault| fault.kind.place() == Place::Await);
        let mut faults = faults.filter(|fault| (fault.record, fault.attempt) == (record, attempt));
        faults.next().map(|fault| fault.at)
    }

    /// Finds the fault of a call of the store in this delivery.
    fn fault_of_call(&self, running: Running) -> Option<(usize, StoreFault)> {
        let Running { record, attempt, .. } = running;
        self.faults.iter().find_map(|fault| match fault.kind {
            _ if (fault.record, fault.attempt) != (record, attempt) => None,
            Kind::Refuse => Some((fault.at, StoreFault::Refuse)),
            Kind::LoseReply => Some((fault.at, StoreFault::LoseReply)),
            _ => None,
        })
    }

    fn add_event(&mut self, running: Running, what: &str, woken: Await) {
        let at = woken.describe(running.attempt);
        self.records[running.record].story.add(format!("{what} {at}"));
    }

    /// Notes what happened in a delivery, and ends the faults of its store.
    fn end_delivery(&mut self, running: Running, delivery: &Delivery) {
        let store = self.processes[running.process].store();
        store.heal();
        let calls = store.calls();
        if let Some((at, fault)) = self.fault_of_call(running)
            && let Some(call) = calls.get(at - 1).filter(|call| call.fault == Some(fault))
        {
            let name = call.commands.first().map_or("call", |command| command.operation.name());
            let what = match self.take_fault(running.record, Place::Call, at) {
                Some(Kind::LoseReply) => "without the reply to",
                _ => "refused by the store in",
            };
            let text = format!("{what} `{name}` of attempt {}", running.attempt);
            self.records[running.record].story.add(text);
        }
        let state = &mut self.records[running.record];
        if delivery.is_granted() {
            state.grants = state.grants.max(running.attempt);
        }
        state.is_exhausted |= delivery.is_exhausted();
        state.acquire = delivery.acquire().or(state.acquire.take());
        state
            .attempts
            .entry(running.attempt)
            .or_insert_with(|| Attempt { awaits: delivery.awaits.clone(), calls: calls.len() });
    }

    /// Decides what follows an error, as the consumer does.
    fn next_after(&mut self, running: Running, error: BoxError) -> Next {
        let story = &mut self.records[running.record].story;
        let (mut lock, mut is_last) = (None, false);
        match IdempotencyError::find(&*error) {
            Some(IdempotencyError::AttemptFailed(failed)) => lock = failed.take_lock(),
            Some(IdempotencyError::Exhausted(exhausted)) => lock = exhausted.take_lock(),
            Some(
                IdempotencyError::MissingKey
                | IdempotencyError::InvalidKey(_)
                | IdempotencyError::Mismatch { .. },
            ) => is_last = true,
            Some(IdempotencyError::Store(_)) => story.remove_delivery(),
            Some(other) if other.is_contention() => story.remove_delivery(),
            Some(_) => {}
            None => {
                let disposition = Defaults.classify(&*error);
                is_last = matches!(disposition, Some(Disposition::DeadLetter | Disposition::Skip));
            }
        }
        let text = describe(&*error);
        if let Some(lock) = lock {
            let given_up = self.processes[running.process].run(async || lock.give_up("").await);
            is_last = given_up.is_ok();
        }
        if is_last {
            return Next::Finished(Finished::GivenUp(text));
        }
        self.records[running.record].last_error = text;
        let retry_after = IdempotencyError::find(&*error).and_then(IdempotencyError::retry_after);
        Next::Again(retry_after.unwrap_or(SECOND))
    }
}
