//! The summary of all records.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use campanile_core::Entry;
use serde::{Serialize, Serializer};

use super::{RecordFinding, RecordFindingKind};
use crate::entries::EntryReport;
use crate::time::Utc;

/// The number of findings of each kind that a report keeps.
const MAX_SHOWN: usize = 20;

/// A partition, and the records of it that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ObservedPartition {
    /// The number of the partition.
    pub partition: i32,
    /// The first offset.
    pub from: i64,
    /// The offset behind the last one.
    pub to: i64,
    /// The offset that the group had committed at the start, if it had.
    pub committed: Option<i64>,
    /// Whether the committed offset is beyond the end of the partition, so that it says nothing: the
    /// partition has lost records, or its topic was created again.
    pub is_beyond_end: bool,
}

/// The result of [`Observe`](super::Observe).
///
/// `Display` formats it for a terminal, with the first 20 findings of each kind. Serializes as an object
/// with the fields' names and without the findings themselves.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ObserveReport {
    /// The topic.
    pub topic: Box<str>,
    /// The consumer group.
    pub group: Box<str>,
    /// The partitions that were read.
    pub partitions: Vec<ObservedPartition>,
    /// The records that were read.
    pub records: u64,
    /// Those that the group's committed offset is past.
    pub finished: u64,
    /// The different keys of all records.
    pub keys: u64,
    /// The keys of finished records that are completed.
    pub completed: u64,
    /// The keys of finished records that are being processed: their locks have not expired.
    pub running: u64,
    /// The number of findings of each kind.
    pub findings: BTreeMap<RecordFindingKind, u64>,
    /// When the earliest entry that was read was created. `None` if none was found.
    #[serde(serialize_with = "as_utc")]
    pub earliest_entry: Option<SystemTime>,
    #[serde(skip)]
    pub(super) shown: Vec<RecordFinding>,
}

fn as_utc<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| Utc(time).to_string()).serialize(serializer)
}

impl ObserveReport {
    pub(super) fn new(topic: &str, group: &str, partitions: &[ObservedPartition]) -> Self {
        Self {
            topic: topic.into(),
            group: group.into(),
            partitions: partitions.to_vec(),
            records: 0,
            finished: 0,
            keys: 0,
            completed: 0,
            running: 0,
            findings: BTreeMap::new(),
            earliest_entry: None,
            shown: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, finding: RecordFinding) {
        let count = self.findings.entry(finding.kind).or_default();
        *count += 1;
        if *count <= MAX_SHOWN as u64 {
            self.shown.push(finding);
        }
    }

    /// Notes when the entry was created, if there is one.
    pub(super) fn note_entry(&mut self, entry: &EntryReport) {
        if let Some(created) = entry.entry().map(Entry::created) {
            self.earliest_entry =
                self.earliest_entry.map_or(created, |time| time.min(created)).into();
        }
    }

    /// Returns the number of findings of this kind.
    pub fn count(&self, kind: RecordFindingKind) -> u64 {
        self.findings.get(&kind).copied().unwrap_or(0)
    }

    /// Checks whether nothing was found.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty() && self.partitions.iter().all(|it| !it.is_beyond_end)
    }

    fn sum(&self, kinds: impl Fn(RecordFindingKind) -> bool) -> u64 {
        self.findings.iter().filter(|(kind, _)| kinds(**kind)).map(|(_, count)| count).sum()
    }

    /// Shows the findings of these kinds by their number.
    fn write_counts(
        &self,
        f: &mut fmt::Formatter<'_>,
        kinds: impl Fn(RecordFindingKind) -> bool,
    ) -> fmt::Result {
        let mut counts = self.findings.iter().filter(|(kind, _)| kinds(**kind));
        counts.try_for_each(|(kind, count)| writeln!(f, "{count:>14}  {kind}: {}", kind.text()))
    }
}

impl fmt::Display for ObserveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use RecordFindingKind as Kind;
        let Self { topic, group, records, finished, keys, completed, running, .. } = self;
        let is_repeat = |kind| matches!(kind, Kind::Repeated | Kind::OtherPayload);
        let is_keyless = |kind| matches!(kind, Kind::NoKey | Kind::InvalidKey);
        writeln!(f, "{topic}, group {group}")?;
        for ObservedPartition { partition, from, to, committed, is_beyond_end } in &self.partitions
        {
            write!(f, "partition {partition}: offsets from {from} to before {to}, ")?;
            match committed {
                None => writeln!(f, "no committed offset")?,
                Some(offset) if *is_beyond_end => writeln!(
                    f,
                    "committed offset {offset}, which is beyond the end and says nothing: the partition \
                     has lost records, or its topic was created again"
                )?,
                Some(offset) => writeln!(f, "committed offset {offset}")?,
            }
        }
        writeln!(f, "\n{records:>9}  records with {keys} keys; {finished} are finished")?;
        writeln!(f, "{completed:>9}  completed")?;
        writeln!(f, "{running:>9}  still running")?;
        writeln!(f, "{:>9}  lost or skipped: finished and not completed", self.sum(Kind::is_lost))?;
        self.write_counts(f, Kind::is_lost)?;
        writeln!(f, "{:>9}  with the key of an earlier record", self.sum(is_repeat))?;
        self.write_counts(f, is_repeat)?;
        writeln!(f, "{:>9}  without a valid key", self.sum(is_keyless))?;
        self.write_counts(f, is_keyless)?;
        let (repeated, other_payloads) =
            (self.count(Kind::Repeated), self.count(Kind::OtherPayload));
        let refused = other_payloads + self.sum(is_keyless);
        writeln!(
            f,
            "\nwith the guard: {keys} would have run, {repeated} would have been answered from the entry, \
             {refused} would have been refused"
        )?;
        if other_payloads > 0 {
            writeln!(
                f,
                "of those refused, {other_payloads} would have been answered instead if the application does \
                 not compare payloads (`fingerprint_by`)"
            )?;
        }
        if self.count(Kind::NoEntry) > 0 {
            match self.earliest_entry {
                Some(time) => writeln!(
                    f,
                    "the earliest entry that was read was created at {}: a record that was processed \
                     before it was observed has none",
                    Utc(time)
                )?,
                None => writeln!(
                    f,
                    "no entry was found: check the namespace, where the key is, and that the consumer is \
                     observed"
                )?,
            }
        }
        if *records > 0 && *keys == 0 {
            writeln!(
                f,
                "no record has a valid key: check where the key is (`--key-header`, `--key-pointer`)"
            )?;
        }
        f.write_str(
            "a record that was delivered again is not visible here; metrics count its runs",
        )?;
        let kinds: Vec<Kind> = self.findings.keys().copied().collect();
        for kind in kinds {
            f.write_str("\n")?;
            let shown = self.shown.iter().filter(|finding| finding.kind == kind);
            shown.clone().try_for_each(|finding| write!(f, "\n{finding}"))?;
            let more = self.count(kind) - shown.count() as u64;
            if more > 0 {
                write!(f, "\n{more} more {kind}; --json prints all")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_keeps_some_findings_of_each_kind() {
        let mut report = ObserveReport::new("payments", "billing", &[]);
        for (kind, count) in [(RecordFindingKind::NoKey, 25), (RecordFindingKind::Failed, 1)] {
            for offset in 0..count {
                let at = format!("payments/0@{offset}").parse().unwrap();
                report.add(RecordFinding::new(&at, kind));
            }
        }
        assert_eq!((report.count(RecordFindingKind::NoKey), report.shown.len()), (25, 21));
        assert!(!report.is_sound());
        let text = report.to_string();
        assert!(text.contains("payments/0@19  no_key\n5 more no_key; --json prints all"), "{text}");
        assert!(text.contains("payments/0@0  failed\n"), "{text}");
    }
}
