//! A consumer group with one member. Its partitions are revoked, lost, reset and sought at random.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use campanile_core::Record;
use campanile_driver::source::{
    Amount, Assignment, CommitResult, CommitStart, Event, Received, SeekTarget, Source,
};
use campanile_driver::{SeekError, SeekTo, SourceContext};
use fastrand::Rng;
use futures_util::future::BoxFuture;
use tokio::time::sleep;

use crate::history::History;

pub(crate) const TOPIC: &str = "orders";

/// A bug around the driver, to verify that the simulation finds what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// More is committed than is finished.
    CommitsTooMuch,
    /// A record does not arrive.
    Loses,
    /// A revoked partition is released before it is drained.
    ReleasesEarly,
    /// Records of a key are processed at the same time.
    IgnoresOrder,
    /// More records are in flight than allowed.
    ExceedsLimit,
    /// The driver does not know that a dependency is unavailable.
    HidesOutage,
}

impl Bug {
    pub(crate) const ALL: [Self; 6] = [
        Self::CommitsTooMuch,
        Self::Loses,
        Self::ReleasesEarly,
        Self::IgnoresOrder,
        Self::ExceedsLimit,
        Self::HidesOutage,
    ];
}

/// The simulated brokers.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Mutex<State>>);

pub(crate) struct State {
    pub(crate) random: Rng,
    pub(crate) history: History,
    bug: Option<Bug>,
    /// The offsets of each partition's records, which may have gaps.
    logs: BTreeMap<i32, Vec<i64>>,
    /// The committed offset of each partition.
    committed: BTreeMap<i32, i64>,
    /// Whether fault injection is over.
    pub(crate) faults_stopped: bool,
    keys: usize,
    member: Member,
}

/// The only member of the group, as seen by the brokers and by its client library.
#[derive(Default)]
struct Member {
    assigned: BTreeMap<i32, FetchedPartition>,
    events: Vec<Event>,
    revoked: Option<Revoked>,
    commit: Option<Vec<(Arc<Assignment>, i64)>>,
    waker: Option<Waker>,
    context: SourceContext,
    has_left: bool,
}

/// Revoked partitions that are not released yet.
struct Revoked {
    partitions: Vec<Arc<Assignment>>,
    lost: bool,
    /// Whether they were lost only while they were drained, so that another member may have them already.
    overtaken: bool,
}

/// A partition that the member fetches from.
struct FetchedPartition {
    assignment: Arc<Assignment>,
    /// The index of the next record in the log.
    position: usize,
    paused: bool,
}

impl Cluster {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, history: History) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut log = |_| {
            let mut offset = random.i64(0..5);
            let count = random.usize(1..20);
            let next = |_| {
                offset += if random.u8(..) < 30 { random.i64(2..5) } else { 1 };
                offset
            };
            (0..count).map(next).collect()
        };
        let logs = (0..3).map(|partition| (partition, log(partition))).collect();
        let keys = random.usize(1..6);
        Self(Arc::new(Mutex::new(State {
            random,
            history,
            bug,
            logs,
            committed: BTreeMap::new(),
            faults_stopped: false,
            keys,
            member: Member::default(),
        })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(&self, context: SourceContext) -> SimulatedSource {
        let mut state = self.state();
        state.member = Member { context, ..Member::default() };
        SimulatedSource(self.clone())
    }

    /// Assigns, revokes, loses and resets partitions until all records are processed and committed.
    pub(crate) async fn rebalance(&self) {
        loop {
            let pause = self.state().random.u64(1..400);
            sleep(Duration::from_millis(pause)).await;
            let mut state = self.state();
            if let Some(violation) = &state.history.violation {
                panic!("{violation}");
            }
            if state.is_done() {
                return;
            }
            state.inject_fault();
        }
    }

    pub(crate) fn are_faults_stopped(&self) -> bool {
        self.state().faults_stopped
    }

    /// Stops fault injection.
    pub(crate) fn stop_faults(&self) {
        self.state().faults_stopped = true;
    }
}

impl State {
    /// Replaces the records of a partition.
    pub(crate) fn set_log(&mut self, partition: i32, offsets: Vec<i64>) {
        self.logs.insert(partition, offsets);
        self.wake();
    }

    pub(crate) fn log(&self, partition: i32) -> &[i64] {
        &self.logs[&partition]
    }

    pub(crate) fn committed(&self, partition: i32) -> Option<i64> {
        self.committed.get(&partition).copied()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.logs.iter().all(|(partition, log)| {
            self.committed.get(partition).copied() == log.last().map(|last| last + 1)
        })
    }

    fn inject_fault(&mut self) {
        let partition = self.random.i32(0..3);
        let is_assigned = self.member.assigned.contains_key(&partition);
        let choice = self.random.u8(..);
        match choice {
            _ if self.member.has_left => {}
            0..128 if self.member.revoked.as_ref().is_some_and(|revoked| !revoked.lost) => {
                self.overtake_revoke();
            }
            // It may be given back before it is released.
            0..128
                if self.member.revoked.as_ref().is_some_and(|it| it.overtaken) && !is_assigned =>
            {
                self.assign(partition);
            }
            _ if self.member.revoked.is_some() => {}
            _ if !is_assigned => self.assign(partition),
            _ if self.faults_stopped => {}
            0..60 => self.revoke(vec![partition], false),
            60..75 => self.revoke(vec![partition], true),
            75..90 => self.reset(partition),
            _ => {}
        }
    }

    pub(crate) fn assign(&mut self, partition: i32) {
        let committed = self.committed.get(&partition).copied().unwrap_or_default();
        let assignment = self.fetch_from(partition, committed);
        self.push_event(Event::Assigned(vec![assignment]));
    }

    /// Fetches a partition from this offset on, under a new assignment.
    fn fetch_from(&mut self, partition: i32, offset: i64) -> Arc<Assignment> {
        let assignment = Arc::new(self.member.context.assignment(TOPIC, partition));
        let position = self.logs[&partition].partition_point(|other| *other < offset);
        self.history.assigned(partition);
        let fetched = FetchedPartition { assignment: assignment.clone(), position, paused: false };
        self.member.assigned.insert(partition, fetched);
        assignment
    }

    pub(crate) fn revoke(&mut self, partitions: Vec<i32>, lost: bool) {
        let mut revoked = Vec::new();
        for partition in &partitions {
            let fetched = self.member.assigned.remove(partition).expect("it is assigned");
            fetched.assignment.revoke();
            revoked.push(fetched.assignment);
        }
        if self.bug == Some(Bug::ReleasesEarly) {
            partitions.iter().for_each(|partition| self.history.released(*partition, lost));
        }
        let partitions = revoked.clone();
        self.member.revoked = Some(Revoked { partitions, lost, overtaken: false });
        self.push_event(Event::Revoked { partitions: revoked, lost });
    }

    /// Gives revoked partitions to another member before they are released.
    fn overtake_revoke(&mut self) {
        let revoked = self.member.revoked.as_mut().expect("partitions are revoked");
        (revoked.lost, revoked.overtaken) = (true, true);
        let partitions = revoked.partitions.clone();
        partitions.iter().for_each(|of| self.history.overtaken(of.partition));
        self.push_event(Event::Revoked { partitions, lost: true });
    }

    /// Moves the position backwards, as an operator would.
    fn reset(&mut self, partition: i32) {
        let back = self.random.usize(1..6);
        let fetched = self.member.assigned.get_mut(&partition).expect("the partition is assigned");
        if fetched.position > 0 {
            fetched.position = fetched.position.saturating_sub(back);
            self.history.reset(partition);
            self.wake();
        }
    }

    fn push_event(&mut self, event: Event) {
        self.member.events.push(event);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.member.waker.take() {
            waker.wake();
        }
    }

    /// Answers the commit in flight.
    fn answer_commit(&mut self) {
        let Some(offsets) = self.member.commit.take() else {
            return;
        };
        let end = match self.random.u8(..) {
            0..20 if !self.faults_stopped => CommitResult::Failed,
            20..30 if !self.faults_stopped => CommitResult::Refused,
            _ => CommitResult::Acknowledged,
        };
        if end == CommitResult::Acknowledged {
            for (assignment, offset) in offsets {
                let offset = offset + i64::from(self.bug == Some(Bug::CommitsTooMuch));
                let partition = assignment.partition;
                let revoked = self.member.revoked.as_ref();
                let is_owned = self
                    .member
                    .assigned
                    .get(&partition)
                    .is_some_and(|fetched| fetched.assignment.id == assignment.id)
                    || revoked.is_some_and(|revoked| revoked.keeps(&assignment));
                if is_owned {
                    assignment.set_committed(offset);
                    let log = self.logs[&partition].clone();
                    self.history.committed(partition, offset, &log);
                    self.committed.insert(partition, offset);
                }
            }
        }
        self.push_event(Event::Committed(end));
    }
}

impl Revoked {
    /// Checks whether no other member has the partition yet.
    fn keeps(&self, assignment: &Assignment) -> bool {
        !self.lost && self.partitions.iter().any(|revoked| revoked.id == assignment.id)
    }
}

pub(crate) struct SimulatedSource(Cluster);

impl Source for SimulatedSource {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        room: Option<Amount>,
        events: &mut Vec<Event>,
    ) -> bool {
        let mut state = self.0.state();
        let State { member, logs, random, keys, history, bug, .. } = &mut *state;
        member.waker = Some(cx.waker().clone());
        let before = events.len();
        events.append(&mut member.events);
        let mut records = Vec::new();
        let mut room = room.map_or(0, |room| room.records.min(random.u64(1..8)));
        for (partition, fetched) in &mut member.assigned {
            let log = &logs[partition];
            while room > 0 && !fetched.paused && fetched.position < log.len() {
                let offset = log[fetched.position];
                let key = format!("{}", offset as usize % *keys);
                history.delivered((*partition, offset), &key);
                let record = Record::builder(TOPIC, *partition, offset).key(key).build();
                fetched.position += 1;
                room -= 1;
                if *bug == Some(Bug::Loses) && random.u8(..) < 10 {
                    continue;
                }
                fetched.assignment.offset_range.record_read(offset);
                let assignment = fetched.assignment.id;
                records.push(Received { assignment, record, due: None });
            }
        }
        if !records.is_empty() {
            events.push(Event::Records(records));
        }
        events.len() > before
    }

    fn pause(&mut self, partitions: &[Arc<Assignment>]) {
        self.0.state().set_paused(partitions, true);
    }

    fn resume(&mut self, partitions: &[Arc<Assignment>]) {
        self.0.state().set_paused(partitions, false);
    }

    /// Looks up an offset that is not above the committed one, since the records below it must be
    /// processed.
    fn look_up(
        &mut self,
        partition: &Arc<Assignment>,
        _: SeekTo,
    ) -> BoxFuture<'static, Result<SeekTarget, SeekError>> {
        let mut state = self.0.state();
        let committed = state.committed.get(&partition.partition).copied().unwrap_or_default();
        let offset = state.random.i64(0..=committed);
        let delay = state.random.u64(0..50);
        Box::pin(async move {
            sleep(Duration::from_millis(delay)).await;
            Ok(SeekTarget { offset, committed })
        })
    }

    fn seek(&mut self, partition: &Arc<Assignment>, offset: i64) {
        let mut state = self.0.state();
        let fetched = state.member.assigned.get(&partition.partition);
        // A partition that was revoked is not sought.
        if fetched.is_some_and(|fetched| fetched.assignment.id == partition.id) {
            partition.revoke();
            state.history.sought(partition.partition);
            let new = state.fetch_from(partition.partition, offset);
            state.push_event(Event::Sought { old: partition.clone(), new });
        }
    }

    fn commit(&mut self, partitions: &[Arc<Assignment>]) -> CommitStart {
        let mut state = self.0.state();
        assert!(state.member.commit.is_none(), "two commits are in flight");
        let offset =
            |assignment: &Arc<Assignment>| Some((assignment.clone(), assignment.uncommitted()?));
        let offsets: Vec<_> = partitions.iter().filter_map(offset).collect();
        if offsets.is_empty() {
            return CommitStart::NotNow;
        }
        state.member.commit = Some(offsets);
        let (cluster, delay) = (self.0.clone(), state.random.u64(0..50));
        tokio::spawn(async move {
            sleep(Duration::from_millis(delay)).await;
            cluster.state().answer_commit();
        });
        CommitStart::Started
    }

    fn release(&mut self) {
        let mut state = self.0.state();
        let revoked = state.member.revoked.take().expect("partitions are revoked");
        for assignment in revoked.partitions.iter().filter(|_| !revoked.overtaken) {
            state.history.released(assignment.partition, revoked.lost);
        }
    }

    fn tick(&mut self, _: &[Arc<Assignment>]) {}

    fn close(&mut self) {
        let mut state = self.0.state();
        let partitions: Vec<i32> = state.member.assigned.keys().copied().collect();
        for partition in partitions {
            state.history.released(partition, false);
        }
        state.member.assigned.clear();
        state.member.has_left = true;
        state.push_event(Event::Closed);
    }
}

impl State {
    fn set_paused(&mut self, partitions: &[Arc<Assignment>], paused: bool) {
        for assignment in partitions {
            let fetched = self.member.assigned.get_mut(&assignment.partition);
            if let Some(fetched) = fetched.filter(|fetched| fetched.assignment.id == assignment.id)
            {
                fetched.paused = paused;
            }
        }
    }
}
