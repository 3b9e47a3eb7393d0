//! All instruments. This file is their only definition.
//!
//! Names, units, attributes and buckets that begin with `messaging.` are those of OpenTelemetry's
//! semantic conventions for messaging, version 1.42, in which they are not stable yet. A later version
//! of the conventions is adopted with a release that says so.

use super::attributes::{
    AttributeValue, DeliveryError, DuplicateCause, ErrorType, LockLoss, LogChangeKind,
    ObservedOrigin, ObservedVerdict, PartitionState, PauseCause, RebalanceKind, RecordOutcome,
    RedisLoss, RequestOutcome, SettlementKind, StoreErrorType, StoreOperation, UnguardedCause,
};
use super::instrument::{Attribute, Instrument, InstrumentKind};
use InstrumentKind::{Counter, Gauge, Histogram};

/// The attribute for the namespace of a layer.
pub const NAMESPACE: &str = "campanile.namespace";
/// The attribute for the system, which is always [`KAFKA`].
pub const SYSTEM: &str = "messaging.system";
/// The value of [`SYSTEM`].
pub const KAFKA: &str = "kafka";
/// The attribute for the name of an operation.
pub const OPERATION_NAME: &str = "messaging.operation.name";
/// The attribute for the type of an operation.
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

/// A duplicate comes from a second to the whole retention after its first run.
const AGE_SECONDS: &[f64] =
    &[0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 21_600.0, 86_400.0, 172_800.0, 604_800.0];

const BATCH_SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// An attribute with values of the program.
const fn open(name: &'static str) -> Attribute {
    Attribute { name, values: &[] }
}

/// An attribute with these values.
const fn fixed(name: &'static str, values: &'static [&'static str]) -> Attribute {
    Attribute { name, values }
}

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
    REQUESTS: Counter, "campanile.requests", "{request}", [open(NAMESPACE), RequestOutcome::ATTRIBUTE],
        "Requests that the layer has answered, or that were dropped while their handler ran under a lock.";
    ATTEMPTS: Counter, "campanile.attempts", "{attempt}", [open(NAMESPACE)],
        "Runs of a handler under a lock, counted when they begin.";
    DUPLICATES: Counter, "campanile.duplicates", "{request}", [open(NAMESPACE), DuplicateCause::ATTRIBUTE],
        "Requests that were answered as duplicates.";
    UNGUARDED_RUNS: Counter, "campanile.unguarded.runs", "{run}",
        [open(NAMESPACE), UnguardedCause::ATTRIBUTE],
        "Runs of a handler without a lock, counted when they begin.";
    LOCK_WAITS: Histogram(WAIT_SECONDS), "campanile.lock.wait.duration", "s", [open(NAMESPACE)],
        "Waits of the layer for another owner of the key, with `OnLocked::Wait`.";
    LOCKS_HELD: Gauge, "campanile.locks.held", "{lock}", [open(NAMESPACE)],
        "Locks that this process holds, acquires or settles now.";
    LOCKS_LOST: Counter, "campanile.locks.lost", "{lock}", [open(NAMESPACE), LockLoss::ATTRIBUTE],
        "Locks that were lost before their attempt ended.";
    SETTLEMENTS_REFUSED: Counter, "campanile.settlements.refused", "{settlement}",
        [open(NAMESPACE), SettlementKind::ATTRIBUTE],
        "Settlements that the store refused because another owner has taken over the key. If it is `complete`, the effect may have happened twice.";
    COMPLETIONS_UNRECORDED: Gauge, "campanile.completions.unrecorded", "{completion}", [open(NAMESPACE)],
        "Handlers that have succeeded, with a completion that is repeated until the store answers it.";
    STORE_CALLS: Histogram(STORE_SECONDS), "campanile.store.call.duration", "s",
        [StoreOperation::ATTRIBUTE],
        "Calls of the store, once for each kind of operation in the call. Calls that never wait, as those of `MemoryStore`, are not measured.";
    STORE_BATCHES: Histogram(BATCH_SIZES), "campanile.store.batch.size", "{command}", [],
        "Commands in one of these calls.";
    STORE_ERRORS: Counter, "campanile.store.errors", "{command}", [StoreErrorType::ATTRIBUTE],
        "Commands that the store did not answer, or answered with an error.";

    OBSERVED_REQUESTS: Counter, "campanile.observed.requests", "{request}",
        [open(NAMESPACE), ObservedVerdict::ATTRIBUTE],
        "Requests that were only observed, by what the layer would have done.";
    OBSERVED_DUPLICATE_AGES: Histogram(AGE_SECONDS), "campanile.observed.duplicate.age", "s",
        [open(NAMESPACE), ObservedOrigin::ATTRIBUTE],
        "Times from the completion of a key to a duplicate that was only observed.";

    // The consumer.
    CONSUMED_MESSAGES: Counter, "messaging.client.consumed.messages", "{message}",
        [fixed(SYSTEM, &[KAFKA]), fixed(OPERATION_NAME, &["poll"]), open(TOPIC), open(PARTITION), open(GROUP)],
        "Records that the consumer has received.";
    PROCESS_DURATION: Histogram(SECONDS), "messaging.process.duration", "s",
        [fixed(SYSTEM, &[KAFKA]), fixed(OPERATION_NAME, &["process"]), open(TOPIC), open(GROUP), ErrorType::ATTRIBUTE],
        "Attempts at a record by the consumer, until the service responds. Attempts that are dropped are not measured.";
    OPERATION_DURATION: Histogram(SECONDS), "messaging.client.operation.duration", "s",
        [fixed(SYSTEM, &[KAFKA]), fixed(OPERATION_NAME, &["commit", "send"]), fixed(OPERATION_TYPE, &["settle", "send"]), open(GROUP), DeliveryError::ATTRIBUTE],
        "Commits (`commit`, with the group) until the brokers respond, and publications (`send`) until they are acknowledged or given up.";
    SENT_MESSAGES: Counter, "messaging.client.sent.messages", "{message}",
        [fixed(SYSTEM, &[KAFKA]), fixed(OPERATION_NAME, &["send"]), DeliveryError::ATTRIBUTE],
        "Messages that were published, or given up with an error: dead letters, copies for retry topics, outputs, and those of a `Publisher`.";
    RECORDS: Counter, "campanile.consumer.records", "{record}", [open(TOPIC), open(GROUP), RecordOutcome::ATTRIBUTE],
        "Records that are finished or dropped.";
    RETRIES: Counter, "campanile.consumer.retries", "{attempt}", [open(TOPIC), open(GROUP), ErrorType::ATTRIBUTE],
        "Attempts after which the record is tried again, by their error.";
    DEAD_LETTERS: Counter, "campanile.consumer.dead_letters", "{record}",
        [open(TOPIC), open(GROUP), ErrorType::ATTRIBUTE],
        "Records that were dead-lettered, by the error for which they were given up.";
    REBALANCES: Counter, "campanile.consumer.rebalances", "{rebalance}", [open(GROUP), RebalanceKind::ATTRIBUTE],
        "Changes of the assigned partitions.";
    LOG_CHANGES: Counter, "campanile.consumer.log_changes", "{change}",
        [open(TOPIC), open(GROUP), LogChangeKind::ATTRIBUTE],
        "Changes of a partition's log that lose records or replace all of them.";
    LAG: Gauge, "campanile.consumer.lag", "{record}", [open(TOPIC), open(PARTITION), open(GROUP)],
        "The lag of the status; 0 once the partition is revoked.";
    OLDEST_AGE: Gauge, "campanile.consumer.oldest.age", "s", [open(TOPIC), open(PARTITION), open(GROUP)],
        "The age of the oldest unfinished record, as in the status; 0 if there is none.";
    PARTITIONS: Gauge, "campanile.consumer.partitions", "{partition}", [open(GROUP), PartitionState::ATTRIBUTE],
        "Assigned partitions.";
    BUFFERED_RECORDS: Gauge, "campanile.consumer.buffered.records", "{record}", [open(GROUP)],
        "Records and outputs in memory: read, and not finished or not committed.";
    BUFFERED_SIZE: Gauge, "campanile.consumer.buffered.size", "By", [open(GROUP)],
        "Bytes of these records and outputs.";
    PAUSED: Gauge, "campanile.consumer.paused", "{consumer}", [open(GROUP), PauseCause::ATTRIBUTE],
        "1 while the consumer is paused, else 0.";
    DEPENDENCIES_UNAVAILABLE: Gauge, "campanile.consumer.dependencies.unavailable", "{dependency}", [open(GROUP)],
        "Dependencies that handlers have reported as unavailable, and that records wait for.";
    STORE_UNAVAILABLE: Gauge, "campanile.consumer.store.unavailable", "{consumer}", [open(GROUP)],
        "1 while no records are started because the store does not answer, else 0.";

    // The stores.
    OUTBOX_LEADER: Gauge, "campanile.outbox.leader", "{relay}", [],
        "1 while the relay of this process leads and publishes the outbox, 0 while it stands by and after it has ended. Processes without a relay have none.";
    OUTBOX_MESSAGES: Gauge, "campanile.outbox.messages", "{message}", [],
        "Messages in the outbox, at most 10000, counted every 10 s by the relay that leads. 0 in other processes.";
    OUTBOX_OLDEST_AGE: Gauge, "campanile.outbox.oldest.age", "s", [],
        "The age of the oldest of them.";
    POSTGRES_UNSAFE_SETTINGS: Counter, "campanile.postgres.unsafe_settings", "{finding}", [],
        "Findings about the settings of a server, such as a disabled `synchronous_commit`, that were not there when the store connected.";
    REDIS_SHORTFALLS: Counter, "campanile.redis.shortfalls", "{completion}", [],
        "Completions that were acknowledged although too few replicas or disks had them in time.";
    REDIS_DATA_LOSSES: Counter, "campanile.redis.data_losses", "{loss}", [RedisLoss::ATTRIBUTE],
        "Losses of acknowledged data that this process has found: its last completion is gone after a restart or a failover, or a namespace is gone, which only the first process that finds it counts.";
    REDIS_UNSAFE_SETTINGS: Counter, "campanile.redis.unsafe_settings", "{finding}", [],
        "Findings about the settings of a server, such as its eviction policy, that were not there when the store connected.";
}
