//! Why a record ran, waits, or did not run.

use std::fmt;

use serde::Serialize;

/// Why a record ran, waits, or did not run. `Display` is a sentence about the record, and
/// [`hint`](Self::hint) says what can be done. Serializes as the variant's name in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The partition has no such offset yet.
    BeyondEnd,
    /// The topic's retention, or a tool, has deleted the record.
    BeforeStart,
    /// Compaction has removed the record, or the offset is that of a transaction's marker.
    NoRecord,
    /// The transaction of the record's producer was aborted.
    Aborted,
    /// The record is at or behind the first one of an open transaction.
    OpenTransaction,

    /// The record has no idempotency key.
    NoKey,
    /// The record's idempotency key cannot be read.
    InvalidKey,
    /// The value in the store is no entry of this version.
    Unreadable,

    /// There is no entry, and no group was named.
    NoEntry,
    /// There is no entry, and the group has no offset in the partition.
    NoCommittedOffset,
    /// The record is due, and the group has no members.
    NoConsumer,
    /// There is no entry, and earlier records of the partition are unfinished.
    Behind,
    /// There is no entry, and the record is the first one that is not finished.
    First,
    /// There is no entry, and the offset is committed.
    CommittedWithoutEntry,
    /// There is no entry, and the committed offset is beyond the end of the partition.
    CommittedBeyondEnd,

    /// The key is locked for this record: the handler runs, or its process has died recently.
    Running,
    /// The key is locked, and the group has no members.
    LockedWithoutConsumer,
    /// The key is locked for another record with the same key.
    RunningForOther,
    /// The offset is committed, and the key is processed now.
    RunningAfterCommit,
    /// The key is being given up.
    GivingUp,
    /// The lock has expired: its owner has crashed or hangs.
    OwnerLost,
    /// As [`OwnerLost`](Self::OwnerLost), in the last attempt.
    OwnerLostInLastAttempt,
    /// The lock has expired, and the offset is committed, so that nobody takes the key over.
    Abandoned,
    /// The process died while it gave the key up.
    GiveUpInterrupted,
    /// As [`GiveUpInterrupted`](Self::GiveUpInterrupted), four times, after which nothing is published.
    GiveUpBlocked,

    /// The last attempt failed, and the next one is not due yet.
    BackingOff,
    /// The last attempt failed, and the next one is due.
    RetryDue,
    /// The last attempt was interrupted, and handed back.
    Released,
    /// An operator has reopened the key.
    Reopened,
    /// An operator has reopened the key, and the offset is committed.
    ReopenedAfterCommit,
    /// An operator has taken the lock from its owner.
    Unlocked,
    /// The last attempt failed permanently, and giving the record up was interrupted. A consumer that
    /// stops at a permanent error does not record it as one.
    PermanentFailure,
    /// No attempts are left.
    Exhausted,
    /// The last attempt failed, and the offset is committed.
    RetryAfterCommit,

    /// The handler has succeeded for this record.
    Completed,
    /// The handler has succeeded for this record, and the offset is not committed.
    CompletedUncommitted,
    /// The handler has succeeded for another record with the same key.
    DuplicateOfOther,
    /// The key was completed before this record was written.
    DuplicateOfEarlier,
    /// The handler has succeeded for this record or for another one with the same key.
    CompletedByAny,
    /// The record was given up.
    GivenUp,
    /// The key was given up for another record.
    GivenUpForOther,
}

impl Cause {
    /// The sentence, and the hint.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::BeyondEnd => (
                "There is no such record yet: the offset is at or behind the end of the partition.",
                "Check the coordinates.",
            ),
            Self::BeforeStart => (
                "The record is deleted: the partition begins at a later offset.",
                "If the record was not processed, it must be produced again. Check the topic's \
                 `retention.ms`.",
            ),
            Self::NoRecord => (
                "There is no record at this offset: it is the marker of a transaction, or a later record \
                 with the same Kafka key has replaced it.",
                "Nothing to do for a marker: consumers skip it. If the topic is compacted, nothing was \
                 processed if the consumer read this offset later than it was compacted. Topics with events \
                 should be deleted by time, not compacted.",
            ),
            Self::Aborted => (
                "The transaction of its producer was aborted: consumers skip the record.",
                "Nothing to do. A consumer with `isolation.level` `read_uncommitted` reads it.",
            ),
            Self::OpenTransaction => (
                "A transaction is open at this record or before it: consumers do not get the record \
                 before the transaction ends.",
                "Wait for the end of the transaction. If its producer has crashed, the brokers abort \
                 it after the producer's `transaction.timeout.ms`.",
            ),
            Self::NoKey => (
                "The record has no idempotency key, so it gets no lock and no entry.",
                "Check that the key was looked up where the application's extractor finds it, such as in \
                 the payload instead of a header. If it was, the record is given up without an attempt \
                 by default: look for its dead letter.",
            ),
            Self::InvalidKey => (
                "The record's idempotency key cannot be read, so it gets no lock and no entry.",
                "Check that the key was looked up where the application's extractor finds it. If it was, fix the \
                 producer: the record is given up without an attempt.",
            ),
            Self::Unreadable => (
                "The value in the store is no entry of this version, so the record cannot be \
                 processed.",
                "Use the version that wrote the value. If it was not Campanile, delete the value, \
                 and find out what else writes to the store.",
            ),
            Self::NoEntry => (
                "The key has no entry: it was never processed, or its entry has expired or was lost.",
                "Name the consumer group to learn whether the record is finished.",
            ),
            Self::NoCommittedOffset => (
                "The record was not reached: the group has never committed an offset in this \
                 partition.",
                "Check the name of the group, and that the consumer runs and subscribes to the \
                 topic.",
            ),
            Self::NoConsumer => (
                "The record waits for a consumer: the group has no members.",
                "Start the consumer, or check the name of the group. If the consumer has stopped at this \
                 record, as its log says, fix the error first.",
            ),
            Self::Behind => (
                "The record was not reached: earlier records of its partition are not finished.",
                "Explain the record at the committed offset, which holds up the partition or is \
                 being processed.",
            ),
            Self::First => (
                "The record is the first one of its partition that is not finished, and it has no \
                 lock yet.",
                "If this lasts, look at the consumer's log and status: the partition or the consumer \
                 is paused or stopped, the store is unavailable, or the record does not decode.",
            ),
            Self::CommittedWithoutEntry => (
                "The record is finished, and its key has no entry: its entry has expired, the store has \
                 lost it, or the record was skipped, dead-lettered without a lock, or not guarded.",
                "If the entry has expired or was lost, a further delivery runs the handler again. It \
                 was lost if records that finished at that time have none either, and later ones do; \
                 for Redis, the metric `campanile.redis.data_losses` and an event at ERROR say so. \
                 Check the namespace and the settings of the key, and look for a dead letter.",
            ),
            Self::CommittedBeyondEnd => (
                "The group's committed offset is beyond the end of the partition, so it says nothing \
                 about the record: the partition has lost records, its topic was created again, or the \
                 offset is that of another cluster.",
                "A consumer starts where `auto.offset.reset` says. Stop the consumer, and set the \
                 group's offset to the first record that must be processed.",
            ),
            Self::Running => (
                "The handler is running for the record, or its process has died and its lock has not \
                 expired yet.",
                "Wait for the end. A live process renews the lock before it expires, so its time is \
                 later when you ask again; otherwise the next delivery after that time takes the key \
                 over. If the handler hangs, stop its process, or unlock the key.",
            ),
            Self::LockedWithoutConsumer => (
                "The key is locked, and the group has no members: the process that ran the handler was \
                 killed or has left, or it belongs to another group.",
                "Start the consumer, or check the name of the group. Its next delivery waits until the \
                 lock expires, and then takes the key over.",
            ),
            Self::RunningForOther => (
                "The handler is running for another record with the same key, or its process has died \
                 and its lock has not expired yet. This record waits for the outcome.",
                "Wait for the end. If the other one succeeds, this record is a duplicate.",
            ),
            Self::RunningAfterCommit => (
                "The record's offset is committed, and its key is being processed: for a copy in a \
                 retry topic, for another record with the same key, or because the record was \
                 delivered again.",
                "Wait for the end.",
            ),
            Self::GivingUp => (
                "The record is being given up: its dead letter is published, and its handler does \
                 not run.",
                "If this lasts, check that the dead-letter topic exists and accepts records.",
            ),
            Self::OwnerLost => (
                "The lock has expired: the process that ran the handler has crashed, hangs, or has \
                 lost the store. The next delivery takes the key over.",
                "If this lasts, check that a consumer runs. Look for the crash in the log of the \
                 process.",
            ),
            Self::OwnerLostInLastAttempt => (
                "The lock has expired in the last attempt: the process has crashed, hangs, or has \
                 lost the store. The next delivery gives the record up.",
                "If the record must be processed, raise the maximum attempts, or reopen the key \
                 after it was given up.",
            ),
            Self::Abandoned => (
                "The lock has expired, and the record's offset is committed, so no delivery takes the \
                 key over: the record was skipped, or the group's offsets were moved.",
                "If the record must be processed, produce it again. Its next attempt counts on.",
            ),
            Self::GiveUpInterrupted => (
                "The process died, or lost the store, while it gave the record up. The next delivery \
                 publishes the dead letter, perhaps a second time.",
                "If this repeats, look for crashes at these times, such as too little memory.",
            ),
            Self::GiveUpBlocked => (
                "The process died four times while it gave the record up, so nothing is published any \
                 more, and the partition waits.",
                "Find out what ends the process while it publishes the dead letter. Then reopen the \
                 key with force; if it is PROCESSING, unlock it first.",
            ),
            Self::BackingOff => (
                "The last attempt failed, and the record waits for its next one.",
                "Fix the error. To start the next attempt sooner, reopen the key with force and restart \
                 the consumer, which otherwise waits for the time that it knows.",
            ),
            Self::RetryDue => (
                "The last attempt failed, and the next one is due: the next delivery runs the \
                 handler.",
                "If this lasts, check that the consumer runs and its partition is not paused or \
                 stopped.",
            ),
            Self::Released => (
                "The last attempt was interrupted by a shutdown, a rebalance or an outage of the store, \
                 or a dependency of the handler was unavailable. It does not count. The next delivery \
                 runs the handler.",
                "If this lasts, check that the consumer runs, and what its status lists as unavailable.",
            ),
            Self::Reopened => (
                "An operator has reopened the key. The next delivery runs the handler.",
                "If this lasts, check that the consumer runs.",
            ),
            Self::ReopenedAfterCommit => (
                "An operator has reopened the key, but the record's offset is committed, so nothing \
                 runs it.",
                "Produce the record again, unless that is done: `redrive` does both.",
            ),
            Self::Unlocked => (
                "An operator has taken the lock from its owner. The next delivery runs the handler.",
                "Check that the former owner has stopped: its handler may still run.",
            ),
            Self::PermanentFailure => (
                "The last attempt failed permanently, and the record was not given up to the end. The next \
                 delivery does that without running the handler, or stops the consumer, as it does by \
                 default.",
                "If the record must be processed, fix the cause and reopen the key with force: neither \
                 a fixed handler nor more attempts change what is recorded. Otherwise skip it, or set a dead-letter topic (`on_give_up`). Then start the consumer, \
                 if it has stopped.",
            ),
            Self::Exhausted => (
                "No attempts are left. The next delivery gives the record up, at which a consumer stops \
                 by default.",
                "If the record must be processed, fix the cause, then raise the maximum attempts or \
                 reopen the key with force. Otherwise skip it, or set a dead-letter topic \
                 (`on_give_up`). Then start the consumer, if it has stopped.",
            ),
            Self::RetryAfterCommit => (
                "The last attempt failed, and the record's offset is committed: a copy waits in a \
                 retry topic, or the record was skipped.",
                "Without retry topics, nothing runs the record again: produce it again.",
            ),
            Self::Completed => ("The handler has succeeded for this record.", "Nothing to do."),
            Self::CompletedUncommitted => (
                "The handler has succeeded for this record, and its offset is not committed yet.",
                "If the group's offset does not advance, explain the record at the committed \
                 offset. Delivered again, this record is a duplicate.",
            ),
            Self::DuplicateOfOther => (
                "The record is a duplicate: the handler has succeeded for another record with the \
                 same key, which may be its copy in a retry topic.",
                "Nothing to do, if both are the same event. Otherwise the producer or the settings \
                 of the key are wrong.",
            ),
            Self::DuplicateOfEarlier => (
                "The record is a duplicate: its key was completed before the record was written, by \
                 the clocks of the store and of Kafka.",
                "Nothing to do, if both are the same event. To see the other record, keep the \
                 details of completed keys (`with_completed_details`).",
            ),
            Self::CompletedByAny => (
                "The key is completed: the handler has succeeded for this record, or for another one \
                 with the same key.",
                "To learn which, keep the details of completed keys (`with_completed_details`).",
            ),
            Self::GivenUp => (
                "The record was given up. Further deliveries of its key do not run the handler.",
                "Look for its dead letter. If the record must be processed, fix the cause, reopen the \
                 key and produce the record again.",
            ),
            Self::GivenUpForOther => (
                "The key was given up for another record, which may be the copy of this one in a \
                 retry topic, so this record does not run the handler.",
                "If this record must be processed, reopen the key and produce the record again.",
            ),
        }
    }

    /// Returns what can be done.
    pub const fn hint(self) -> &'static str {
        self.texts().1
    }

    /// Checks whether the record was read. If not, its coordinates may be wrong.
    pub const fn has_record(self) -> bool {
        !matches!(self, Self::BeyondEnd | Self::BeforeStart | Self::NoRecord)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().0)
    }
}
