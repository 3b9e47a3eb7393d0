//! Counts entries.

use std::fmt;
use std::time::Duration;

use campanile_core::State;
use campanile_idempotency::{Found, InspectStore};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{BYTES, EntryPages, EntryReport};
use crate::AdminError;

/// The number of entries by state, by age, and by the time until they expire.
///
/// An entry that changes during the count may be counted twice or with its former state. Bytes are
/// an estimate of what the store needs: those of the values as they are encoded, without their keys and
/// what the store adds to each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EntryStats {
    /// PROCESSING, including the stuck ones.
    pub processing: StateStats,
    /// PROCESSING with an expired lock.
    pub stuck: u64,
    /// RETRYING.
    pub retrying: StateStats,
    /// COMPLETED.
    pub completed: StateStats,
    /// FAILED.
    pub failed: StateStats,
    /// Values that are no entries of this version.
    pub unreadable: u64,
}

/// The entries of one state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StateStats {
    /// The number of entries.
    pub entries: u64,
    /// Their bytes, as an estimate.
    pub bytes: u64,
    /// The number of entries by the time since they were created.
    pub age: Histogram,
    /// The number of entries by the time until they expire, if nothing changes them before. This is
    /// what the retention frees.
    pub expiry: Histogram,
}

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;
const LABELS: [&str; 5] = ["1h", "1d", "7d", "30d", "longer"];
const BOUNDS: [Duration; 4] = [
    Duration::from_secs(HOUR),
    Duration::from_secs(DAY),
    Duration::from_secs(7 * DAY),
    Duration::from_secs(30 * DAY),
];

/// Counts periods of up to 1 h, 1 d, 7 d, 30 d, and longer ones. Each is counted once, under the first
/// bound that it does not exceed.
///
/// Serializes as an object with the fields `1h`, `1d`, `7d`, `30d` and `longer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram([u64; 5]);

impl Histogram {
    /// Returns the counts, in the order of the bounds.
    pub const fn counts(&self) -> [u64; 5] {
        self.0
    }

    fn count(&mut self, period: Duration) {
        let bucket = BOUNDS.iter().position(|bound| period <= *bound);
        self.0[bucket.unwrap_or(BOUNDS.len())] += 1;
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(LABELS.len()))?;
        for (label, count) in LABELS.iter().zip(self.0) {
            map.serialize_entry(label, &count)?;
        }
        map.end()
    }
}

impl EntryStats {
    /// Counts the entries of these pages.
    ///
    /// ```
    /// use campanile_admin::entries::{EntryPages, EntryQuery, EntryStats};
    /// use campanile_idempotency::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let all = EntryPages::new(&store, EntryQuery::new("billing.payments".try_into()?));
    /// println!("{}", EntryStats::count(all).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the store does not answer.
    pub async fn count<S: InspectStore>(mut pages: EntryPages<'_, S>) -> Result<Self, AdminError> {
        let mut stats = Self::default();
        while let Some(page) = pages.next().await? {
            page.iter().for_each(|report| stats.add(report));
        }
        Ok(stats)
    }

    fn add(&mut self, report: &EntryReport) {
        match report.found() {
            Found::Entry { entry, expires_at } => {
                self.stuck += u64::from(report.is_stuck());
                let stats = match entry.state() {
                    State::Processing => &mut self.processing,
                    State::Retrying => &mut self.retrying,
                    State::Completed => &mut self.completed,
                    State::Failed => &mut self.failed,
                };
                stats.entries += 1;
                stats.bytes += entry.to_bytes().len() as u64;
                let now = report.now();
                stats.age.count(now.duration_since(entry.created()).unwrap_or_default());
                stats.expiry.count(expires_at.duration_since(now).unwrap_or_default());
            }
            Found::Unreadable { .. } => self.unreadable += 1,
            _ => {}
        }
    }
}

impl fmt::Display for EntryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = [
            ("PROCESSING", &self.processing),
            ("RETRYING", &self.retrying),
            ("COMPLETED", &self.completed),
            ("FAILED", &self.failed),
        ];
        writeln!(f, "{:<12}{:>14}{:>16}", "state", "entries", "bytes")?;
        for (name, stats) in states {
            writeln!(f, "{name:<12}{:>14}{:>16}", stats.entries, stats.bytes)?;
        }
        writeln!(
            f,
            "{} of PROCESSING are stuck; {} values are unreadable\n{BYTES}",
            self.stuck, self.unreadable
        )?;
        let histogram = |stats: &StateStats, by_age| if by_age { stats.age } else { stats.expiry };
        for (title, by_age) in [("created", true), ("expires", false)] {
            let labels = if by_age {
                ["≤ 1 h ago", "≤ 1 d ago", "≤ 7 d ago", "≤ 30 d ago", "earlier"]
            } else {
                ["in ≤ 1 h", "in ≤ 1 d", "in ≤ 7 d", "in ≤ 30 d", "later"]
            };
            write!(f, "\n{title:<12}")?;
            labels.iter().try_for_each(|label| write!(f, "{label:>12}"))?;
            for (name, stats) in states {
                write!(f, "\n{name:<12}")?;
                let counts = histogram(stats, by_age).counts();
                counts.iter().try_for_each(|count| write!(f, "{count:>12}"))?;
            }
            if by_age {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
