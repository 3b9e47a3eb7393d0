//! The contract of every [`Source`], as a test for your own sources.
//!
//! The driver relies on it: a source that passes needs no change in the scheduler. Write a
//! [`SourceFixture`] over your brokers, and pass it to [`run`]:
//!
//! ```no_run
//! use campanile_driver::SourceContext;
//! use campanile_test::source::{self, SourceFixture};
//! # use campanile_driver::source::Source;
//!
//! # fn connect() -> Brokers { Brokers }
//! # struct Brokers;
//! # impl SourceFixture for Brokers {
//! #     fn join(&mut self, _: &SourceContext) -> Box<dyn Source> { unimplemented!() }
//! #     fn produce(&mut self, _: i32, _: usize) {}
//! #     fn revoke(&mut self) {}
//! #     fn assign(&mut self) {}
//! #     fn committed(&mut self, _: i32) -> Option<i64> { None }
//! # }
//! #[tokio::test]
//! async fn it_keeps_the_contract() {
//!     source::run(connect()).await;
//! }
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use campanile_driver::source::{
    Amount, Assignment, AssignmentId, CommitResult, CommitStart, Event, Source,
};
use campanile_driver::{SeekTo, SourceContext};
use tokio::time::{sleep, timeout};

/// The partitions of the topic.
const PARTITIONS: [i32; 2] = [0, 1];

/// How much the driver has room for, in each poll.
const ROOM: Amount = Amount { records: 100, bytes: 1_000_000 };

/// How long anything may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The interval at which the driver polls a source that does not wake it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The number of polls in which nothing may happen.
const QUIET_POLLS: usize = 10;

/// The brokers of a source under test: one topic with the partitions 0 and 1, and a group without other
/// members and without committed offsets.
pub trait SourceFixture {
    /// Joins the group, which assigns both partitions.
    fn join(&mut self, context: &SourceContext) -> Box<dyn Source>;

    /// Appends this many records to a partition.
    fn produce(&mut self, partition: i32, records: usize);

    /// Makes the group revoke all partitions, without their loss.
    fn revoke(&mut self);

    /// Makes the group assign all partitions again.
    fn assign(&mut self);

    /// Reads the group's committed offset.
    fn committed(&mut self, partition: i32) -> Option<i64>;
}

/// Tests a source.
///
/// # Panics
/// Panics at the first promise that is broken.
pub async fn run(mut fixture: impl SourceFixture) {
    let context = SourceContext::default();
    for partition in PARTITIONS {
        fixture.produce(partition, 3);
    }
    let mut member = Member::new(fixture.join(&context));
    records_arrive_in_order_and_only_where_there_is_room(&mut member).await;
    commits_are_acknowledged(&mut member, &mut fixture).await;
    seek_delivers_the_records_again(&mut member).await;
    revoked_partitions_are_committed_until_they_are_released(&mut member, &mut fixture).await;
    member.source.close();
    member.wait("the end", |member| member.is_closed).await;
}

async fn records_arrive_in_order_and_only_where_there_is_room(member: &mut Member) {
    member.room = None;
    member.wait("both partitions", |member| member.assigned.len() == PARTITIONS.len()).await;
    member.poll_quietly().await;
    assert!(member.offsets.is_empty(), "records arrive without room: {:?}", member.offsets);
    member.room = Some(ROOM);
    member.pause(0);
    member.wait("the records of a partition", |member| member.offsets_of(1).len() == 3).await;
    member.poll_quietly().await;
    assert!(member.offsets_of(0).is_empty(), "records of a paused partition arrive");
    member.resume(0);
    member.wait("the records of a resumed partition", |it| it.offsets_of(0).len() == 3).await;
}

async fn commits_are_acknowledged(member: &mut Member, fixture: &mut impl SourceFixture) {
    let both = member.assigned.values().cloned().collect::<Vec<_>>();
    assert_eq!(member.source.commit(&both), CommitStart::NotNow, "nothing is finished");
    let second = member.offsets_of(0)[1];
    member.commit(0, second + 1).await;
    assert_eq!(fixture.committed(0), Some(second + 1));
    assert_eq!(fixture.committed(1), None, "a partition without a finished record is committed");
    assert_eq!(member.source.commit(&both), CommitStart::NotNow, "all of it is committed");
}

async fn seek_delivers_the_records_again(member: &mut Member) {
    let before = member.offsets_of(1);
    let old = member.assigned[&1].clone();
    member.pause(1);
    let target = member.source.look_up(&old, SeekTo::Beginning).await;
    let target = target.expect("the offset is looked up");
    assert!(target.offset <= before[0], "the beginning is {target:?}");
    member.source.seek(&old, target.offset);
    // A seek resumes the partition.
    member.paused.remove(&1);
    member.wait("a new assignment", |member| member.assigned[&1].id != old.id).await;
    assert!(old.is_revoked() && !member.assigned[&1].is_revoked());
    member.wait("the records from the start on", |it| it.offsets_of(1).len() == 3).await;
    assert_eq!(member.offsets_of(1), before);
}

async fn revoked_partitions_are_committed_until_they_are_released(
    member: &mut Member,
    fixture: &mut impl SourceFixture,
) {
    let old = member.assigned.clone();
    let last = member.offsets_of(0)[2];
    fixture.revoke();
    member.wait("the revoke", |member| member.assigned.is_empty()).await;
    assert!(old.values().all(|assignment| assignment.is_revoked()));
    old[&0].advance(last + 1);
    member.commit_all(&[old[&0].clone()]).await;
    assert_eq!(fixture.committed(0), Some(last + 1));
    member.source.release();
    fixture.produce(0, 1);
    fixture.assign();
    member.wait("both partitions again", |it| it.assigned.len() == PARTITIONS.len()).await;
    assert!(PARTITIONS.iter().all(|of| member.assigned[of].id != old[of].id));
    member.wait("the next record", |it| !it.offsets_of(0).is_empty()).await;
    assert!(member.offsets_of(0)[0] > last, "a committed record arrives again");
}

/// A member of the group, as the driver sees it.
struct Member {
    source: Box<dyn Source>,
    room: Option<Amount>,
    assigned: BTreeMap<i32, Arc<Assignment>>,
    paused: BTreeSet<i32>,
    /// The offsets that were received in each assignment.
    offsets: HashMap<AssignmentId, Vec<i64>>,
    results: Vec<CommitResult>,
    is_closed: bool,
}

impl Member {
    fn new(source: Box<dyn Source>) -> Self {
        Self {
            source,
            room: None,
            assigned: BTreeMap::new(),
            paused: BTreeSet::new(),
            offsets: HashMap::new(),
            results: Vec::new(),
            is_closed: false,
        }
    }

    /// Lists the offsets that were received in the current assignment of a partition.
    fn offsets_of(&self, partition: i32) -> Vec<i64> {
        let assignment = self.assigned.get(&partition);
        let offsets = assignment.and_then(|assignment| self.offsets.get(&assignment.id));
        offsets.cloned().unwrap_or_default()
    }

    fn pause(&mut self, partition: i32) {
        self.source.pause(&[self.assigned[&partition].clone()]);
        self.paused.insert(partition);
    }

    fn resume(&mut self, partition: i32) {
        self.source.resume(&[self.assigned[&partition].clone()]);
        self.paused.remove(&partition);
    }

    /// Commits what is finished below this offset.
    async fn commit(&mut self, partition: i32, watermark: i64) {
        let assignment = self.assigned[&partition].clone();
        assignment.advance(watermark);
        self.commit_all(&[assignment]).await;
    }

    async fn commit_all(&mut self, partitions: &[Arc<Assignment>]) {
        assert_eq!(self.source.commit(partitions), CommitStart::Started);
        self.wait("the end of a commit", |member| !member.results.is_empty()).await;
        assert_eq!(std::mem::take(&mut self.results), [CommitResult::Acknowledged]);
        for assignment in partitions {
            assert_eq!(assignment.uncommitted(), None, "{assignment}: the offset is not noted");
        }
    }

    /// Polls the source until this holds.
    async fn wait(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let waited = timeout(TIME_LIMIT, async {
            while !holds(self) {
                self.poll().await;
            }
        });
        assert!(waited.await.is_ok(), "waited in vain for {what}");
    }

    /// Polls the source for long enough that it would have delivered something.
    async fn poll_quietly(&mut self) {
        for _ in 0..QUIET_POLLS {
            self.poll().await;
        }
    }

    /// Polls the source once it has woken this task, or after the interval.
    async fn poll(&mut self) {
        let mut events = Vec::new();
        let (source, room) = (&mut self.source, self.room);
        let poll = poll_fn(|cx| match source.poll(cx, room, &mut events) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        tokio::select! {
            biased;
            () = poll => {}
            () = sleep(POLL_INTERVAL) => {}
        }
        events.into_iter().for_each(|event| self.handle(event));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Assigned(partitions) => {
                for assignment in partitions {
                    assert!(!assignment.is_revoked());
                    let before = self.assigned.insert(assignment.partition, assignment);
                    assert!(before.is_none(), "a partition is assigned twice");
                }
            }
            Event::Records(records) => {
                for received in records {
                    let (partition, offset) =
                        (received.record.partition(), received.record.offset());
                    let assignment = self.assigned.get(&partition);
                    let assignment = assignment.expect("the partition of a record is assigned");
                    assert_eq!(received.assignment, assignment.id);
                    assert!(!self.paused.contains(&partition), "its partition is paused");
                    let offsets = self.offsets.entry(received.assignment).or_default();
                    assert!(offsets.last() < Some(&offset), "{offset} follows {offsets:?}");
                    offsets.push(offset);
                }
            }
            Event::Revoked { partitions, lost } => {
                assert!(!lost, "the partitions are not lost");
                for assignment in partitions {
                    assert!(assignment.is_revoked());
                    let assigned = self.assigned.remove(&assignment.partition);
                    assert_eq!(assigned.map(|assigned| assigned.id), Some(assignment.id));
                }
            }
            Event::Sought { old, new } => {
                let before = self.assigned.insert(new.partition, new);
                assert_eq!(before.map(|before| before.id), Some(old.id));
            }
            Event::Committed(result) => self.results.push(result),
            Event::Failed(error) => panic!("the source has failed: {error:?}"),
            Event::Closed => self.is_closed = true,
            Event::LogChanged(change) => panic!("the log is the same: {change:?}"),
        }
    }
}
