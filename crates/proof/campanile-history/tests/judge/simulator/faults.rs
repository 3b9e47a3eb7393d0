//! What is broken in a simulation.

use campanile_history::{Answer, End, Event, Fault, FaultKind, How, Outcome, State, Transactions};

use super::{LOCK_TTL, PROCESSES, Phase, Running, Simulation};

impl Simulation {
    pub(super) fn move_partition(&mut self, partition: usize) {
        let now = self.now;
        let awake: Vec<usize> =
            (0..PROCESSES).filter(|&n| self.processes[n].suspended_until < now).collect();
        self.partitions[partition].owner = self.rng.choice(awake).expect("one is awake");
    }

    fn record_fault(&mut self, at: u64, until: Option<u64>, kind: FaultKind) {
        self.record_event("test", Event::Fault(Fault { at, until, kind }));
    }

    pub(super) fn fault(&mut self, has_data_loss: bool) {
        let now = self.now;
        let awake: Vec<usize> =
            (0..PROCESSES).filter(|&n| self.processes[n].suspended_until < now).collect();
        if self.transactions == Some(Transactions::Store) && self.rng.bool() {
            self.end_sessions();
        }
        match self.rng.u8(..if has_data_loss { 5 } else { 3 }) {
            0 => {
                let process = self.rng.choice(awake).expect("one is awake");
                self.kill(process);
            }
            1 if awake.len() > 2 => {
                let process = self.rng.choice(awake).expect("one is awake");
                self.suspend(process);
            }
            1 => {}
            2 => {
                let process = self.rng.choice(awake).expect("one is awake");
                self.shut_down(process);
            }
            3 => {
                let from = now - self.rng.u64(1..100_000).min(now);
                self.entries
                    .retain(|_, entry| entry.state != State::Completed || entry.since < from);
                self.effects.retain(|effect| effect.at < from);
                self.record_fault(from, Some(now), FaultKind::StoreLostWrites);
            }
            _ => {
                let rng = &mut self.rng;
                self.entries.retain(|_, entry| entry.state != State::Completed || rng.u8(..) < 250);
                self.record_fault(now, Some(now), FaultKind::StoreEvicted);
            }
        }
    }

    /// Rolls back some of the open transactions.
    fn end_sessions(&mut self) {
        let at = self.now;
        self.record_fault(at, Some(at), FaultKind::StoreSessionsEnded);
        for partition in 0..self.partitions.len() {
            let Some(Running { number: run, phase, .. }) = self.partitions[partition].run else {
                continue;
            };
            if phase == Phase::RolledBack || self.rng.bool() {
                continue;
            }
            if phase != Phase::Ended {
                self.record_owned(
                    partition,
                    Event::End(End { at, run, how: How::Error, lost: None }),
                );
            }
            self.enter(partition, run, Phase::RolledBack);
        }
    }

    fn partitions_of(&self, process: usize) -> Vec<usize> {
        (0..self.partitions.len()).filter(|&n| self.partitions[n].owner == process).collect()
    }

    fn kill(&mut self, process: usize) {
        let name = self.processes[process].name.clone();
        self.record_fault(self.now, None, FaultKind::Killed { process: name });
        for partition in self.partitions_of(process) {
            if let Some(run) = self.partitions[partition].run.take() {
                self.abandon(partition, &run);
            }
            self.deliver_again(partition);
            let delay = self.rng.u64(1..LOCK_TTL);
            self.continue_in(partition, delay);
        }
        self.processes[process] = self.new_consumer();
    }

    /// Shuts a process down while the store is unavailable, so that it gives no lock back.
    fn shut_down(&mut self, process: usize) {
        let at = self.now;
        self.record_fault(at, Some(at), FaultKind::StoreUnavailable);
        for partition in self.partitions_of(process) {
            if let Some(run) = self.partitions[partition].run.take() {
                if matches!(run.phase, Phase::Begun | Phase::HadEffect) {
                    let end = End { at, run: run.number, how: How::Dropped, lost: None };
                    self.record_owned(partition, Event::End(end));
                }
                let (record, _) = self.position(partition);
                let (outcome, error) = (Outcome::Dropped, None);
                self.record_owned(partition, Event::Answer(Answer { at, record, outcome, error }));
                self.abandon(partition, &run);
            }
            self.deliver_again(partition);
            let delay = self.rng.u64(1..LOCK_TTL);
            self.continue_in(partition, delay);
        }
        self.processes[process] = self.new_consumer();
    }

    /// Leaves a run to its lock, which expires, unless its completion has arrived.
    fn abandon(&mut self, partition: usize, run: &Running) {
        let (_, key) = self.position(partition);
        if run.phase == Phase::Ended && self.rng.bool() {
            self.complete(partition, &key, run.number);
        } else {
            let entry = self.entries.get_mut(&key).expect("the key is locked");
            entry.locked_until = self.now + LOCK_TTL;
        }
    }

    /// Continues at the committed offset. The outputs behind it are aborted.
    fn deliver_again(&mut self, partition: usize) {
        if self.transactions == Some(Transactions::Broker) {
            let log = &mut self.partitions[partition];
            log.next = log.committed;
            log.pending.clear();
        }
    }

    fn suspend(&mut self, process: usize) {
        let now = self.now;
        let until = now + LOCK_TTL + self.rng.u64(1..LOCK_TTL);
        let name = self.processes[process].name.clone();
        self.processes[process].suspended_until = until;
        let kind = FaultKind::Suspended { process: name.clone() };
        self.record_fault(now, Some(until), kind);
        for partition in self.partitions_of(process) {
            let (at, run) = (until, self.partitions[partition].run.take());
            if let Some(Running { number: run, phase, .. }) = run {
                let (record, key) = self.position(partition);
                // The last renewal was up to half of the time to live ago.
                let remaining = self.rng.u64(LOCK_TTL / 2 + 1..=LOCK_TTL);
                self.entries.get_mut(&key).expect("the key is locked").locked_until =
                    now + remaining;
                if matches!(phase, Phase::Begun | Phase::HadEffect) {
                    let (how, lost) = (How::Dropped, Some("expired".into()));
                    self.record_event(&name, Event::End(End { at, run, how, lost }));
                }
                let (outcome, error) = (Outcome::Error, Some("lock lost".into()));
                self.record_event(&name, Event::Answer(Answer { at, record, outcome, error }));
            }
            self.deliver_again(partition);
            self.move_partition(partition);
            let delay = self.rng.u64(1..LOCK_TTL);
            self.continue_in(partition, delay);
        }
    }
}
