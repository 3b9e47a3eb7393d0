//! What is shown of a group.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::entries::{EntriesView, EntryCounts};
use super::metrics::ProcessLook;
use super::{Look, Watch};
use crate::entries::printable;
use crate::time::{Period, Utc};

/// A group at one time.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The time by this machine's clock, by RFC 3339.
    pub time: String,
    /// The consumer group.
    pub group: String,
    /// The state of the group, such as `Stable`. `None` if it is unknown: there is no such group, or it
    /// uses Kafka's newer protocol, for which librdkafka lists no members.
    pub state: Option<String>,
    /// The number of members. `None` if it is unknown.
    pub members: Option<usize>,
    /// The sum of the partitions' lags.
    pub lag: i64,
    /// Records per second by which the committed offsets have risen. `None` in the first snapshot.
    pub records_per_second: Option<f64>,
    /// The partitions, in the order of their topics and numbers.
    pub partitions: Vec<PartitionView>,
    /// The processes of the application that metrics are read from.
    pub processes: Vec<ProcessView>,
    /// The entries, if they are counted and the first count has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<EntriesView>,
}

/// A partition of the group.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PartitionView {
    /// The topic.
    pub topic: String,
    /// The number of the partition.
    pub partition: i32,
    /// The committed offset. `None` if there is none.
    pub committed: Option<i64>,
    /// The offset behind the last record. `None` if the partition is unavailable.
    pub end: Option<i64>,
    /// Records from the committed offset to the end. `None` if one of them is unknown.
    pub lag: Option<i64>,
    /// Records per second by which the committed offset has risen.
    pub records_per_second: Option<f64>,
    /// The member that has the partition.
    pub member: Option<String>,
}

/// A process of the application.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct ProcessView {
    /// The URL of its metrics.
    pub url: String,
    /// Why its metrics could not be read. Everything else is then empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Answered requests per second, by outcome. `None` in the first snapshot.
    pub outcomes_per_second: Option<BTreeMap<String, f64>>,
    /// Locks that the process holds, acquires or settles.
    pub in_flight: f64,
    /// Records in memory.
    pub buffered: f64,
    /// The age of the oldest unfinished record, in seconds.
    pub oldest_seconds: f64,
    /// Why the consumer is paused. Empty if it is not.
    pub paused: BTreeSet<String>,
    /// Whether no records are started because the store does not answer.
    pub store_unavailable: bool,
    /// Handlers that have succeeded without their completion being recorded yet.
    pub completions_unrecorded: f64,
}

impl Snapshot {
    pub(super) fn new(
        settings: &Watch,
        time: SystemTime,
        look: &Look,
        last: Option<&Look>,
        entries: Option<EntriesView>,
    ) -> Self {
        let last = last.map(|last| (last, look.at - last.at)).filter(|(_, it)| !it.is_zero());
        let partition =
            |((topic, number), seen): (&(String, i32), &super::kafka::PartitionLook)| {
                let rate = last.and_then(|(last, elapsed)| {
                    let before = last.group.partitions.get(&(topic.clone(), *number))?.committed?;
                    Some((seen.committed? - before) as f64 / elapsed.as_secs_f64())
                });
                let lag =
                    seen.end.zip(seen.committed).map(|(end, committed)| (end - committed).max(0));
                PartitionView {
                    topic: topic.clone(),
                    partition: *number,
                    committed: seen.committed,
                    end: seen.end,
                    lag,
                    records_per_second: rate,
                    member: seen.member.clone(),
                }
            };
        let partitions: Vec<_> = look.group.partitions.iter().map(partition).collect();
        let rates = partitions.iter().filter_map(|partition| partition.records_per_second);
        let process = |(index, url): (usize, &http::Uri)| {
            let before = last.and_then(|(last, elapsed)| {
                Some((last.processes.get(index)?.as_ref().ok()?, elapsed))
            });
            ProcessView::new(url.to_string(), &look.processes[index], before)
        };
        Self {
            time: Utc(time).to_string(),
            group: settings.group.clone(),
            state: look.group.state.clone(),
            members: look.group.members,
            lag: partitions.iter().filter_map(|partition| partition.lag).sum(),
            records_per_second: last.map(|_| rates.sum()),
            processes: settings.metrics.iter().enumerate().map(process).collect(),
            partitions,
            entries,
        }
    }

    /// Describes the group in one line of names and values, for logs. A value that is unknown is `-`.
    /// The values of the processes are sums, `oldest` is that of the oldest record, and `paused` and
    /// `unreachable` are numbers of processes.
    pub fn to_line(&self) -> String {
        let mut line = format!("{} group={}", self.time, self.group);
        let mut add = |name: &str, value: &dyn fmt::Display| {
            let _ = write!(line, " {name}={value}");
        };
        add("state", &self.state.as_deref().unwrap_or("-"));
        add("members", &number(self.members));
        add("partitions", &self.partitions.len());
        add("lag", &self.lag);
        add("records/s", &rate(self.records_per_second));
        let seen: Vec<_> = self.processes.iter().filter(|it| it.error.is_none()).collect();
        if !self.processes.is_empty() {
            let sum = |value: fn(&ProcessView) -> f64| seen.iter().map(|it| value(it)).sum::<f64>();
            let oldest = seen.iter().map(|process| process.oldest_seconds).fold(0.0, f64::max);
            add("in_flight", &sum(|process| process.in_flight));
            add("buffered", &sum(|process| process.buffered));
            add("oldest", &format_args!("{:.0}s", seconds(oldest).as_secs_f64()));
            add("paused", &seen.iter().filter(|process| !process.paused.is_empty()).count());
            add("unreachable", &(self.processes.len() - seen.len()));
        }
        let mut outcomes = BTreeMap::<&str, f64>::new();
        for (outcome, rate) in
            seen.iter().filter_map(|it| it.outcomes_per_second.as_ref()).flatten()
        {
            *outcomes.entry(outcome.as_str()).or_default() += rate;
        }
        for (outcome, per_second) in outcomes {
            add(&format!("{outcome}/s"), &rate(Some(per_second)));
        }
        match &self.entries {
            None => {}
            Some(EntriesView::Failed { error }) => add("entries_error", &format_args!("{error:?}")),
            Some(EntriesView::Counted(counts)) => {
                add("PROCESSING", &counts.processing);
                add("stuck", &counts.stuck);
                add("RETRYING", &counts.retrying);
                add("FAILED", &counts.failed);
                add("COMPLETED", &counts.completed);
                add("unreadable", &counts.unreadable);
            }
        }
        if self.has_nothing() {
            let _ = write!(line, " note={NOTHING:?}");
        }
        printable(&line)
    }

    /// Describes the group in lines, for a terminal: a summary, the partitions, of which at most this
    /// number with the longest lags, the processes, and the entries.
    pub fn to_lines(&self, max_partitions: usize) -> Vec<String> {
        let mut lines = vec![format!("{}  {}", self.headline(), self.time), String::new()];
        lines.push(format!(
            "{:<26}{:>12}{:>12}{:>9}{:>10}  member",
            "partition", "committed", "end", "lag", "records/s"
        ));
        let mut by_lag: Vec<_> = self.partitions.iter().enumerate().collect();
        by_lag.sort_by_key(|(_, partition)| std::cmp::Reverse(partition.lag));
        let left_out = by_lag.split_off(by_lag.len().min(max_partitions)).len();
        by_lag.sort_by_key(|(index, _)| *index);
        lines.extend(by_lag.into_iter().map(|(_, partition)| partition.to_line()));
        if left_out > 0 {
            lines.push(format!("… and {left_out} partitions with shorter lags"));
        }
        if !self.processes.is_empty() {
            lines.push(String::new());
        }
        lines.extend(self.processes.iter().flat_map(ProcessView::to_lines));
        if let Some(entries) = &self.entries {
            lines.extend([String::new(), entries.describe()]);
        }
        lines.into_iter().map(|line| printable(&line)).collect()
    }

    fn has_nothing(&self) -> bool {
        self.members.is_none() && self.partitions.is_empty()
    }

    fn headline(&self) -> String {
        let group = match (&self.state, self.members, self.partitions.is_empty()) {
            (Some(state), Some(members), _) => format!("{state}, {}", count(members, "member")),
            (_, _, true) => format!("has {NOTHING}"),
            _ => "members unknown".to_owned(),
        };
        let rate = self.records_per_second.map(|rate| format!(", {rate:.1} records/s"));
        let partitions = count(self.partitions.len(), "partition");
        let (name, lag) = (&self.group, self.lag);
        format!("{name}: {group}; {partitions}, lag {lag}{}", rate.unwrap_or_default())
    }
}

impl PartitionView {
    fn to_line(&self) -> String {
        format!(
            "{:<26}{:>12}{:>12}{:>9}{:>10}  {}",
            format!("{}/{}", self.topic, self.partition),
            number(self.committed),
            number(self.end),
            number(self.lag),
            rate(self.records_per_second),
            self.member.as_deref().unwrap_or("-"),
        )
    }
}

impl ProcessView {
    fn new(
        url: String,
        look: &Result<ProcessLook, String>,
        before: Option<(&ProcessLook, Duration)>,
    ) -> Self {
        match look {
            Ok(look) => Self {
                url,
                error: None,
                outcomes_per_second: before.map(|(before, elapsed)| look.rates(before, elapsed)),
                in_flight: look.in_flight,
                buffered: look.buffered,
                oldest_seconds: look.oldest_age,
                paused: look.paused.clone(),
                store_unavailable: look.store_unavailable,
                completions_unrecorded: look.unrecorded,
            },
            Err(error) => Self { url, error: Some(error.clone()), ..Self::default() },
        }
    }

    fn to_lines(&self) -> Vec<String> {
        if let Some(error) = &self.error {
            return vec![format!("{}: {error}", self.url)];
        }
        let paused: Vec<_> = self.paused.iter().map(String::as_str).collect();
        let mut line = format!(
            "{}: {} in flight, {} buffered, oldest {}, {}",
            self.url,
            self.in_flight,
            self.buffered,
            Period(seconds(self.oldest_seconds)),
            if paused.is_empty() {
                "not paused".into()
            } else {
                format!("paused ({})", paused.join(", "))
            },
        );
        if self.store_unavailable {
            line.push_str(", STORE UNAVAILABLE");
        }
        if self.completions_unrecorded > 0.0 {
            let _ = write!(line, ", {} completions NOT RECORDED", self.completions_unrecorded);
        }
        let rates = self.outcomes_per_second.iter().flatten().filter(|(_, rate)| **rate > 0.0);
        let rates: Vec<_> = rates.map(|(outcome, rate)| format!("{outcome} {rate:.1}/s")).collect();
        let mut lines = vec![line];
        if !rates.is_empty() {
            lines.push(format!("  {}", rates.join(", ")));
        }
        lines
    }
}

impl EntriesView {
    fn describe(&self) -> String {
        let counts = match self {
            Self::Counted(counts) => counts,
            Self::Failed { error } => return format!("entries: {error}"),
        };
        let EntryCounts {
            processing,
            stuck,
            retrying,
            completed,
            failed,
            unreadable,
            seconds: took,
        } = counts;
        format!(
            "entries: {processing} PROCESSING ({stuck} stuck), {retrying} RETRYING, {failed} FAILED, \
             {completed} COMPLETED, {unreadable} unreadable, counted in {}",
            Period(seconds(*took)),
        )
    }
}

/// What is known of a group that the brokers do not know.
const NOTHING: &str = "no members and no committed offsets";

fn number(number: Option<impl fmt::Display>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"))
}

fn count(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

/// Metrics may have any value.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
