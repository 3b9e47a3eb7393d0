//! The recorder of a process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use campanile_core::{Clock, LockHandle, Record};
use campanile_history::{
    Begin, Entry, Event, Fault, FaultKind, Partition, Position, Published, Recorder, Sent,
    Settings, Skipped, State, Visible,
};

use super::{AnswersLayer, RunRecorder, RunsLayer};

/// Records the history of a process. Cheap to clone.
///
/// Each event is written before the method returns, so that it survives a SIGKILL. See
/// [`Recorder`](campanile_history::Recorder).
///
/// # Panics
/// All methods that record panic if the file cannot be written: a history with a gap would be judged
/// wrongly.
#[derive(Clone)]
pub struct HistoryRecorder(Arc<Inner>);

struct Inner {
    recorder: Recorder,
    clock: Clock,
    last_run: AtomicU64,
}

impl HistoryRecorder {
    /// Creates the file of a process, with times of the machine's clock.
    ///
    /// The name of the process must be unique in the folder, also among restarted processes. At least
    /// one process of a history needs settings.
    ///
    /// # Errors
    /// Fails if the file exists or cannot be created.
    pub fn create(
        folder: impl AsRef<Path>,
        process: impl Into<String>,
        settings: Option<Settings>,
    ) -> io::Result<Self> {
        Self::with_clock(folder, process, settings, Clock::boot())
    }

    /// Creates the file of a process as [`create`](Self::create) does, with times of this clock, such
    /// as that of a test with paused time.
    ///
    /// # Errors
    /// Fails if the file exists or cannot be created.
    pub fn with_clock(
        folder: impl AsRef<Path>,
        process: impl Into<String>,
        settings: Option<Settings>,
        clock: Clock,
    ) -> io::Result<Self> {
        let recorder = Recorder::create(folder, process, format!("{clock:?}"), settings)?;
        Ok(Self(Arc::new(Inner { recorder, clock, last_run: AtomicU64::new(0) })))
    }

    /// Creates a layer that records each answer. It belongs around all other layers.
    pub fn answers(&self) -> AnswersLayer {
        AnswersLayer::new(self.clone())
    }

    /// Creates a layer that records the begin and the end of each run. It belongs directly inside the
    /// idempotency layer.
    pub fn runs(&self) -> RunsLayer {
        RunsLayer::new(self.clone())
    }

    /// Records the begin of a run, for handlers that are not in a stack.
    pub fn begin_run(
        &self,
        record: &campanile_core::Coordinates,
        lock: Option<&LockHandle>,
    ) -> RunRecorder {
        self.begin_run_of(coordinates(record), lock)
    }

    /// Records the begin of a run of the record at this place in the history.
    pub(super) fn begin_run_of(
        &self,
        record: campanile_history::Coordinates,
        lock: Option<&LockHandle>,
    ) -> RunRecorder {
        let run = self.0.last_run.fetch_add(1, Ordering::Relaxed) + 1;
        self.record(&Event::Begin(Begin {
            at: self.now(),
            run,
            record,
            key: lock.map(|lock| lock.key().to_text().into_owned()),
            token: lock.map(|lock| lock.token().get()),
            attempt: lock.map(LockHandle::attempt),
        }));
        RunRecorder::new(self.clone(), run, lock.cloned())
    }

    /// Records that the broker has acknowledged a record that was sent at this time, in microseconds of
    /// the history's clock. The record has this idempotency key, and this key by which records are
    /// processed in order.
    pub fn sent(
        &self,
        at: u64,
        record: &campanile_core::Coordinates,
        key: Option<&str>,
        order: Option<&str>,
    ) {
        let (key, order) = (key.map(Into::into), order.map(Into::into));
        let record = coordinates(record);
        self.record(&Event::Sent(Sent { at, record, key, order }));
    }

    /// Records a commit that the broker recorded at this time of the history's clock, in
    /// microseconds. The commits of a partition must be recorded in their order.
    pub fn committed(&self, at: u64, topic: &str, partition: i32, offset: i64) {
        let partition = Partition { topic: topic.into(), number: partition };
        self.record(&Event::Commit(Position { at, partition, offset }));
    }

    /// Records that a policy or a seek skips a record, before the consumer acts on it.
    pub fn skipped(&self, record: &campanile_core::Coordinates) {
        let (at, record) = (self.now(), coordinates(record));
        self.record(&Event::Skipped(Skipped { at, record }));
    }

    /// Records that the records of a partition below this offset are about to be deleted. `i64::MAX` deletes
    /// all of them.
    pub fn deleted(&self, at: u64, topic: &str, partition: i32, offset: i64) {
        let partition = Partition { topic: topic.into(), number: partition };
        self.record(&Event::Deleted(Position { at, partition, offset }));
    }

    /// Records the store's entry of a key as it was read between this time, in microseconds of the
    /// history's clock, and now. `None` if there is none.
    pub fn entry(&self, since: u64, key: &str, entry: Option<&campanile_core::Entry>) {
        let state = entry.map_or(State::Absent, |entry| match entry.state() {
            campanile_core::State::Processing => State::Processing,
            campanile_core::State::Retrying => State::Retrying,
            campanile_core::State::Completed => State::Completed,
            campanile_core::State::Failed => State::Failed,
        });
        self.record(&Event::Entry(Entry {
            at: self.now(),
            since: Some(since),
            key: key.into(),
            state,
            token: entry.map(|entry| entry.token().get()),
            attempt: entry.map(|entry| entry.attempt().into()),
        }));
    }

    /// Records that the store has the effect of a run of a process. The effect names both; see
    /// [`run_number`](Self::run_number).
    pub fn visible(&self, process: &str, run: u64) {
        let (at, process) = (self.now(), process.into());
        self.record(&Event::Visible(Visible { at, process, run }));
    }

    /// Records that a reader of committed messages has read an output of a record at `to`. The output
    /// names its record.
    pub fn output(&self, record: &campanile_core::Coordinates, to: &campanile_core::Coordinates) {
        let (at, record, to) = (self.now(), coordinates(record), coordinates(to));
        self.record(&Event::Output(Published { at, record, to }));
    }

    /// Records a fault, from a time before it began until a time after it ended.
    pub fn fault(&self, from: u64, until: Option<u64>, kind: FaultKind) {
        self.record(&Event::Fault(Fault { at: from, until, kind }));
    }

    /// Records any event.
    pub fn record(&self, event: &Event) {
        self.0.recorder.record(event).expect("the history is writable");
    }

    /// Reads the clock, in microseconds.
    pub fn now(&self) -> u64 {
        u64::try_from(self.0.clock.now().as_micros()).expect("less than 500 000 years")
    }
}

impl fmt::Debug for HistoryRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HistoryRecorder").field(&self.0.recorder).finish()
    }
}

/// The header of records whose topic has another name in the history, because a topic with the same name
/// was deleted before: `NAME~ANYTHING`, such as `payments~2`. The layers that record answers and runs read
/// it. Copies in other topics can keep the header, which has no meaning there.
pub const TOPIC_HEADER: &str = "campanile-test-topic";

/// Returns the coordinates of a record in the history.
pub(super) fn place(record: &Record) -> campanile_history::Coordinates {
    let mut place = coordinates(record.coordinates());
    let named = record.headers().get_str(TOPIC_HEADER);
    let of_topic = |name: &&str| {
        name.strip_prefix(&*place.partition.topic).is_some_and(|it| it.starts_with('~'))
    };
    if let Some(name) = named.filter(of_topic) {
        place.partition.topic = name.to_owned();
    }
    place
}

pub(super) fn coordinates(
    coordinates: &campanile_core::Coordinates,
) -> campanile_history::Coordinates {
    let campanile_core::Coordinates { topic, partition, offset } = coordinates;
    campanile_history::Coordinates::new(&**topic, *partition, *offset)
}
