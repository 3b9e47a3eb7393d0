//! All instruments. This file is their only definition.
//!
//! Names, units, attributes and buckets that begin with `messaging.` are those of OpenTelemetry's
//! semantic conventions for messaging, version 1.44, in which they are not stable yet. A later version
//! of the conventions is adopted with a release that says so.

use super::attributes::{
    AttributeValue, CacheResult, DuplicateCause, ErrorType, LockLoss, PartitionState, PauseCause,
    RebalanceKind, RecordOutcome, RequestOutcome, SettlementKind, StoreErrorType, StoreOperation,
    UnguardedCause,
};
use super::instrument::{Instrument, InstrumentKind};
use InstrumentKind::{Counter, Gauge, Histogram};

/// The attribute for the namespace of a layer.
pub const NAMESPACE: &str = "campanile.namespace";
/// The attribute for the system, which is always [`KAFKA`].
pub const SYSTEM: &str = "messaging.system";
/// The value of [`SYSTEM`].
pub const KAFKA: &str = "kafka";
/// The attribute for the name of an operation: `poll`, `process`, `commit` or `send`.
pub const OPERATION_NAME: &str = "messaging.operation.name";
/// The attribute for the type of an operation: `settle` or `send`.
pub const OPERATION_TYPE: &str = "messaging.operation.type";
/// The attribute for a topic.
pub const TOPIC: &str = "messaging.destination.name";
/// The attribute for the number of a partition.
pub const PARTITION: &str = "messaging.destination.partition.id";
/// The attribute for the consumer's group.
pub const GROUP: &str = "messaging.consumer.group.name";

/// The buckets that the conventions specify for durations.
const SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// A store answers in less time than a handler takes, so the buckets begin lower.
const STORE_SECONDS: &[f64] =
    &[0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Waits last until another owner has finished, which may take minutes.
const WAIT_SECONDS: &[f64] =
    &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

const BATCH_SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

macro_rules! instruments {
    ($(
        $name:ident: $kind:expr, $text:literal, $unit:literal, [$($attribute:expr),*], $description:literal;
    )+) => {
        $(
            #[doc = $description]
            pub static $name: Instrument = Instrument {
                name: $text,
                kind: $kind,
                unit: $unit,
                description: $description,
                attributes: &[$($attribute),*],
            };
        )+

        /// All instruments.
        pub static INSTRUMENTS: &[&Instrument] = &[$(&$name),+];
    };
}

instruments! {
    // The layer and its keeper.
    REQUESTS: Counter, "campanile.requests", "{request}", [NAMESPACE, RequestOutcome::ATTRIBUTE],
        "Requests that the layer has answered, or that were dropped while their handler ran.";
    ATTEMPTS: Counter, "campanile.attempts", "{attempt}", [NAMESPACE],
        "Runs of a handler under a lock, counted when they begin.";
    DUPLICATES: Counter, "campanile.duplicates", "{request}", [NAMESPACE, DuplicateCause::ATTRIBUTE],
        "Requests whose key was COMPLETED, by where their answer comes from.";
    UNGUARDED_RUNS: Counter, "campanile.unguarded.runs", "{run}",
        [NAMESPACE, UnguardedCause::ATTRIBUTE],
        "Runs of a handler without a lock, counted when they begin.";
    LOCK_WAITS: Histogram(WAIT_SECONDS), "campanile.lock.wait.duration", "s", [NAMESPACE],
        "Waits inside the layer for another owner of the key (OnLocked::Wait), until the next acquire.";
    LOCKS_HELD: Gauge, "campanile.locks.held", "{lock}", [NAMESPACE],
        "Locks that this process holds, acquires or settles now.";
    LOCKS_LOST: Counter, "campanile.locks.lost", "{lock}", [NAMESPACE, LockLoss::ATTRIBUTE],
        "Locks that were lost before their attempt ended.";
    SETTLEMENTS_REFUSED: Counter, "campanile.settlements.refused", "{settlement}",
        [NAMESPACE, SettlementKind::ATTRIBUTE],
        "Settlements that the store refused, because another owner has the lock or has settled the key. With the settlement complete, the effect may have happened twice.";
    COMPLETIONS_UNRECORDED: Gauge, "campanile.completions.unrecorded", "{completion}", [NAMESPACE],
        "Handlers that have succeeded and whose completion the store has not answered at the first try, until it does.";
    STORE_CALLS: Histogram(STORE_SECONDS), "campanile.store.call.duration", "s",
        [StoreOperation::ATTRIBUTE],
        "Calls of the store, once for each kind of operation in the batch. Calls that are answered at once, as by MemoryStore, are not measured.";
    STORE_BATCHES: Histogram(BATCH_SIZES), "campanile.store.batch.size", "{command}", [],
        "Commands in each call that is measured by campanile.store.call.duration.";
    STORE_ERRORS: Counter, "campanile.store.errors", "{command}", [StoreErrorType::ATTRIBUTE],
        "Commands that the store did not answer, or answered with an error.";
    CACHE_LOOKUPS: Counter, "campanile.cache.lookups", "{lookup}", [CacheResult::ATTRIBUTE],
        "Acquires that were looked up in the local cache of COMPLETED keys.";

    // The consumer.
    CONSUMED_MESSAGES: Counter, "messaging.client.consumed.messages", "{message}",
        [SYSTEM, OPERATION_NAME, TOPIC, PARTITION, GROUP],
        "Records that the consumer has received.";
    PROCESS_DURATION: Histogram(SECONDS), "messaging.process.duration", "s",
        [SYSTEM, OPERATION_NAME, TOPIC, GROUP, ErrorType::ATTRIBUTE],
        "Attempts at a record, from the call of the service to its response. Those that are dropped are not measured.";
    OPERATION_DURATION: Histogram(SECONDS), "messaging.client.operation.duration", "s",
        [SYSTEM, OPERATION_NAME, OPERATION_TYPE, GROUP, ErrorType::ATTRIBUTE],
        "Commits of offsets or transactions (commit), until the brokers have answered, and publications (send), until they are acknowledged or given up. Publications have no group.";
    SENT_MESSAGES: Counter, "messaging.client.sent.messages", "{message}",
        [SYSTEM, OPERATION_NAME, ErrorType::ATTRIBUTE],
        "Messages that were acknowledged, or given up with an error: dead letters, copies for retry topics, outputs of transactions, and those of a Publisher. An output counts when it is handed to the producer.";
    RECORDS: Counter, "campanile.consumer.records", "{record}", [TOPIC, GROUP, RecordOutcome::ATTRIBUTE],
        "Records that are finished or dropped.";
    RETRIES: Counter, "campanile.consumer.retries", "{attempt}", [TOPIC, GROUP, ErrorType::ATTRIBUTE],
        "Attempts that did not finish their record, which is tried again.";
    DEAD_LETTERS: Counter, "campanile.consumer.dead_letters", "{record}",
        [TOPIC, GROUP, ErrorType::ATTRIBUTE],
        "Records that were dead-lettered, by the error for which they were given up.";
    REBALANCES: Counter, "campanile.consumer.rebalances", "{rebalance}", [GROUP, RebalanceKind::ATTRIBUTE],
        "Changes of the assigned partitions.";
    LAG: Gauge, "campanile.consumer.lag", "{record}", [TOPIC, PARTITION, GROUP],
        "Offsets from the watermark to the end of the partition, as in PartitionStatus. 0 once the partition is revoked.";
    OLDEST_AGE: Gauge, "campanile.consumer.oldest.age", "s", [TOPIC, PARTITION, GROUP],
        "How long the oldest unfinished record has been the oldest, as in PartitionStatus. 0 if there is none.";
    PARTITIONS: Gauge, "campanile.consumer.partitions", "{partition}", [GROUP, PartitionState::ATTRIBUTE],
        "Assigned partitions.";
    BUFFERED_RECORDS: Gauge, "campanile.consumer.buffered.records", "{record}", [GROUP],
        "Records and outputs in memory: read, and not finished or not committed.";
    BUFFERED_SIZE: Gauge, "campanile.consumer.buffered.size", "By", [GROUP],
        "Bytes of these records and outputs.";
    PAUSED: Gauge, "campanile.consumer.paused", "{consumer}", [GROUP, PauseCause::ATTRIBUTE],
        "1 while the consumer is paused, else 0.";
    STORE_UNAVAILABLE: Gauge, "campanile.consumer.store.unavailable", "{consumer}", [GROUP],
        "1 while no records are started because the store does not answer, else 0.";
}
