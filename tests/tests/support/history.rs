//! The history of a test: what its processes and the test itself record.

use std::cell::{Ref, RefCell};
use std::fmt::Display;
use std::path::Path;
use std::thread;
use std::time::Duration;

use campanile::record::Coordinates;
use campanile::store::Entry;
use campanile_test::history::{
    Cause, History, HistoryRecorder, How, Order, Settings, Transactions, Verdict, judge,
};
use campanile_test::{Delivered, Message, Producer};
use rdkafka::error::KafkaError;
use tempfile::TempDir;

use crate::progress::{Progress, Run};

/// How far the time of a commit may be before its cause, in microseconds: brokers truncate their
/// timestamps to milliseconds.
const TOLERANCE: u64 = 2_000;

pub(crate) struct TestHistory {
    folder: TempDir,
    /// Records what the test does.
    pub(crate) recorder: HistoryRecorder,
    progress: RefCell<Progress>,
}

impl TestHistory {
    pub(crate) fn new(order: Order, lock_ttl: Duration) -> Self {
        Self::with_transactions(order, lock_ttl, None)
    }

    pub(crate) fn with_transactions(
        order: Order,
        lock_ttl: Duration,
        transactions: Option<Transactions>,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let (lock_ttl, max_hold, tolerance) = (lock_ttl.as_micros() as u64, None, TOLERANCE);
        let settings = Settings { order, lock_ttl, max_hold, transactions, tolerance };
        let recorder = HistoryRecorder::create(folder.path(), "test", Some(settings)).unwrap();
        Self { folder, recorder, progress: RefCell::default() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Reads what all processes have recorded so far.
    pub(crate) fn progress(&self) -> Ref<'_, Progress> {
        self.progress.borrow_mut().read(self.folder.path());
        self.progress.borrow()
    }

    /// Records the entries that a kill has left to the handlers in flight, as read since this time.
    pub(crate) fn record_entries_after_kill<'e>(
        &self,
        since: u64,
        process: &str,
        entry_of: impl Fn(&str) -> Option<&'e Entry>,
    ) {
        let is_in_flight = |run: &&Run| !run.is_answered && matches!(run.end, None | Some(How::Ok));
        for run in self.progress().runs_of(process).filter(is_in_flight) {
            let key = run.key();
            // Another process may have taken the lock over.
            if let Some(entry) = entry_of(key).filter(|entry| run.has_token(entry)) {
                self.recorder.entry(since, key, Some(entry));
            }
        }
    }

    /// Judges what was recorded. The keys may have run again only for these causes.
    pub(crate) fn judge(&self, causes: &[Cause]) -> Report {
        let verdict = judge(&History::read(self.folder.path()).unwrap());
        let mut violations: Vec<_> = verdict.violations.iter().map(ToString::to_string).collect();
        for rerun in verdict.reruns.iter().filter(|rerun| !causes.contains(&rerun.cause)) {
            violations.push(format!("unexpected cause: {rerun:#?}"));
        }
        Report { verdict, violations }
    }
}

/// Keeps the history of a test that fails, for the example `verify` of `campanile-history`.
impl Drop for TestHistory {
    fn drop(&mut self) {
        if thread::panicking() {
            self.folder.disable_cleanup(true);
            println!("the history is kept in {}", self.folder().display());
        }
    }
}

/// The judge's verdict, and what else the test has found.
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    violations: Vec<String>,
}

impl Report {
    /// Adds a violation of what only the test knows, unless the condition holds.
    pub(crate) fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }

    /// Prints the line of a storm, which `cargo xtask soak` reads, and fails if there is a violation.
    pub(crate) fn finish(self, name: &str, details: impl Display) -> Verdict {
        let Self { verdict, violations } = self;
        let causes = verdict.causes().into_iter().map(|(cause, runs)| format!("{runs} {cause}"));
        println!(
            "storm: {name}: {} records, {} keys, {} runs again ({}), {} violations; {details}",
            verdict.records,
            verdict.keys,
            verdict.reruns.len(),
            causes.collect::<Vec<_>>().join(", "),
            violations.len(),
        );
        let shown = violations.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(shown.is_empty(), "the first of {} violations:\n{shown}", violations.len());
        verdict
    }
}

/// A message, its idempotency key, and the key by which records are processed in order.
pub(crate) type Payment<K = String> = (Message, K, Option<String>);

/// Produces these messages to a topic, and records them. The keys may be optional.
pub(crate) fn produce<K: Into<Option<String>>>(
    history: &HistoryRecorder,
    producer: &Producer,
    topic: &str,
    payments: impl IntoIterator<Item = Payment<K>>,
) {
    try_produce(history, producer, topic, payments).unwrap();
}

/// Produces as [`produce`] does. After an error, none of the messages is recorded, and some may have been
/// delivered.
pub(crate) fn try_produce<K: Into<Option<String>>>(
    history: &HistoryRecorder,
    producer: &Producer,
    topic: &str,
    payments: impl IntoIterator<Item = Payment<K>>,
) -> Result<(), KafkaError> {
    let at = history.now();
    let (messages, keys): (Vec<_>, Vec<_>) =
        payments.into_iter().map(|(message, key, order)| (message, (key, order))).unzip();
    let delivered = producer.produce_all(messages)?;
    for (delivered, (key, order)) in delivered.into_iter().zip(keys) {
        let Delivered { partition, offset } = delivered;
        let record = Coordinates { topic: topic.into(), partition, offset };
        history.sent(at, &record, key.into().as_deref(), order.as_deref());
    }
    Ok(())
}
