//! The metrics of a consumer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::telemetry::instruments::{
    self, GROUP, KAFKA, OPERATION_NAME, OPERATION_TYPE, PARTITION, SYSTEM, TOPIC,
};
use campanile_core::telemetry::{
    Counter, DeliveryError, ErrorType, Family, Gauge, LogChangeKind, PartitionState, PauseCause,
    RebalanceKind, RecordOutcome, ResultHistogram,
};

use crate::paused::Paused;
use crate::rebalance::TopicPartition;
use crate::source::{Amount, Assignment};
use crate::status::Status;
use crate::summary::{Summary, SummaryCounters};

/// The metrics of one consumer. Values that are counted elsewhere are exported once a second.
pub(crate) struct ConsumerMetrics {
    group: Arc<str>,
    /// All topics and partitions that were ever assigned, since a series cannot be removed.
    topics: HashMap<Arc<str>, Arc<TopicMetrics>>,
    partitions: HashMap<TopicPartition, PartitionMetrics>,
    rebalances: Family<RebalanceKind, Counter>,
    partition_states: Family<PartitionState, Gauge>,
    buffered_records: Gauge,
    buffered_size: Gauge,
    paused: Family<PauseCause, Gauge>,
    store_unavailable: Gauge,
    dependencies_unavailable: Gauge,
}

/// The metrics of the records of one topic.
pub(crate) struct TopicMetrics {
    attempts: ResultHistogram<ErrorType>,
    records: Family<RecordOutcome, Counter>,
    pub(crate) retries: Family<ErrorType, Counter>,
    pub(crate) dead_letters: Family<ErrorType, Counter>,
    log_changes: Family<LogChangeKind, Counter>,
}

struct PartitionMetrics {
    topic: Arc<TopicMetrics>,
    consumed: Counter,
    lag: Gauge,
    oldest_age: Gauge,
    counters: Arc<SummaryCounters>,
    /// The part of the counters that was exported.
    exported: Summary,
}

impl ConsumerMetrics {
    pub(crate) fn new(group: Arc<str>) -> Self {
        let labels = &[(GROUP, &*group)];
        Self {
            topics: HashMap::new(),
            partitions: HashMap::new(),
            rebalances: Family::new(&instruments::REBALANCES, labels),
            partition_states: Family::new(&instruments::PARTITIONS, labels),
            buffered_records: Gauge::new(&instruments::BUFFERED_RECORDS, labels),
            buffered_size: Gauge::new(&instruments::BUFFERED_SIZE, labels),
            paused: Family::new(&instruments::PAUSED, labels),
            store_unavailable: Gauge::new(&instruments::STORE_UNAVAILABLE, labels),
            dependencies_unavailable: Gauge::new(&instruments::DEPENDENCIES_UNAVAILABLE, labels),
            group,
        }
    }

    /// Resolves the metrics of an assigned partition, and returns those of its topic.
    pub(crate) fn on_assigned(
        &mut self,
        assignment: &Arc<Assignment>,
        counters: &Arc<SummaryCounters>,
    ) -> Arc<TopicMetrics> {
        let (group, name) = (&self.group, &assignment.topic);
        let topic = self.topics.entry(name.clone());
        let topic = topic.or_insert_with(|| Arc::new(TopicMetrics::new(group, name)));
        let partition = self.partitions.entry(assignment.into());
        partition.or_insert_with(|| {
            PartitionMetrics::new(group, assignment, topic.clone(), counters.clone())
        });
        topic.clone()
    }

    pub(crate) fn count_rebalance(&self, kind: RebalanceKind) {
        self.rebalances.of(kind).increment(1);
    }

    /// Counts a change of the log of a partition, which was assigned before.
    pub(crate) fn count_log_change(&self, partition: &Assignment, kind: LogChangeKind) {
        if let Some(topic) = self.topics.get(&partition.topic) {
            topic.log_changes.of(kind).increment(1);
        }
    }

    /// Exports what has happened since the last call, and the current state.
    pub(crate) fn export(
        &mut self,
        status: &Status,
        paused: Option<&Paused>,
        store_unavailable: bool,
        buffered: Amount,
    ) {
        for (TopicPartition { topic, partition: number }, partition) in &mut self.partitions {
            partition.export_counts();
            let position = status
                .partitions
                .binary_search_by(|other| (&other.topic, other.partition).cmp(&(topic, *number)));
            let assigned = position.ok().map(|position| &status.partitions[position]);
            let lag = assigned.and_then(|assigned| assigned.lag).unwrap_or_default();
            let age = assigned.and_then(|assigned| assigned.oldest_age).unwrap_or_default();
            partition.lag.set(lag as f64);
            partition.oldest_age.set(age.as_secs_f64());
        }
        let count = |state| {
            let of_state = |partition: &&crate::PartitionStatus| {
                let is = match (&partition.stopped, partition.paused) {
                    (Some(_), _) => PartitionState::Stopped,
                    (None, true) => PartitionState::Paused,
                    (None, false) => PartitionState::Active,
                };
                is == state
            };
            let partitions = status.partitions.iter().filter(of_state).count();
            self.partition_states.of(state).set(partitions as f64);
        };
        [PartitionState::Active, PartitionState::Paused, PartitionState::Stopped]
            .into_iter()
            .for_each(count);
        self.buffered_records.set(buffered.records as f64);
        self.buffered_size.set(buffered.bytes as f64);
        let by_handle = matches!(paused, Some(Paused::ByHandle));
        let by_flood_limit = matches!(paused, Some(Paused::Flood { .. }));
        self.paused.of(PauseCause::Handle).set(f64::from(u8::from(by_handle)));
        self.paused.of(PauseCause::FloodLimit).set(f64::from(u8::from(by_flood_limit)));
        self.store_unavailable.set(f64::from(u8::from(store_unavailable)));
        self.dependencies_unavailable.set(status.unavailable.len() as f64);
    }
}

impl TopicMetrics {
    fn new(group: &str, topic: &str) -> Self {
        let labels = &[(TOPIC, topic), (GROUP, group)];
        Self {
            attempts: ResultHistogram::new(
                &instruments::PROCESS_DURATION,
                &[(SYSTEM, KAFKA), (OPERATION_NAME, "process"), (TOPIC, topic), (GROUP, group)],
            ),
            records: Family::new(&instruments::RECORDS, labels),
            retries: Family::new(&instruments::RETRIES, labels),
            dead_letters: Family::new(&instruments::DEAD_LETTERS, labels),
            log_changes: Family::new(&instruments::LOG_CHANGES, labels),
        }
    }

    pub(crate) fn record_attempt(&self, error: Option<ErrorType>, duration: Duration) {
        self.attempts.record(error, duration.as_secs_f64());
    }
}

impl PartitionMetrics {
    fn new(
        group: &str,
        assignment: &Assignment,
        topic: Arc<TopicMetrics>,
        counters: Arc<SummaryCounters>,
    ) -> Self {
        let number = assignment.partition.to_string();
        let labels = &[(TOPIC, &*assignment.topic), (PARTITION, &*number), (GROUP, group)];
        let messaging = [&[(SYSTEM, KAFKA), (OPERATION_NAME, "poll")], &labels[..]].concat();
        Self {
            topic,
            consumed: Counter::new(&instruments::CONSUMED_MESSAGES, &messaging),
            lag: Gauge::new(&instruments::LAG, labels),
            oldest_age: Gauge::new(&instruments::OLDEST_AGE, labels),
            counters,
            exported: Summary::default(),
        }
    }

    /// Counters are exported by what was added, since another consumer of the process may have the
    /// same series.
    fn export_counts(&mut self) {
        let now = self.counters.summary();
        let Summary { received, processed, skipped, dead_lettered, .. } = self.exported;
        let Summary { deferred, revoked, unfinished, .. } = self.exported;
        self.consumed.increment(now.received - received);
        let records = |outcome, count| self.topic.records.of(outcome).increment(count);
        records(RecordOutcome::Processed, now.processed - processed);
        records(RecordOutcome::Skipped, now.skipped - skipped);
        records(RecordOutcome::DeadLettered, now.dead_lettered - dead_lettered);
        records(RecordOutcome::Deferred, now.deferred - deferred);
        records(RecordOutcome::Revoked, now.revoked - revoked);
        records(RecordOutcome::Unfinished, now.unfinished - unfinished);
        self.exported = now;
    }
}

/// The durations of a consumer's commits.
pub(crate) fn commit_durations(group: &str) -> ResultHistogram<DeliveryError> {
    let labels =
        &[(SYSTEM, KAFKA), (OPERATION_NAME, "commit"), (OPERATION_TYPE, "settle"), (GROUP, group)];
    ResultHistogram::new(&instruments::OPERATION_DURATION, labels)
}
