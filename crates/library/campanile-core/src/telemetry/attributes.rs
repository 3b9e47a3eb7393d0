//! The attributes with a fixed set of values.

use super::instrument::Attribute;

/// A value of an attribute with a fixed set of values.
pub trait AttributeValue: Copy + 'static {
    /// The attribute, with the texts of all values.
    const ATTRIBUTE: Attribute;

    /// Returns the position of the value in [`ATTRIBUTE`](Self::ATTRIBUTE).
    fn index(self) -> usize;
}

macro_rules! attribute {
    ($(#[$doc:meta])* $name:ident($attribute:literal) { $($(#[$value_doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$value_doc])* $value,)+
        }

        impl AttributeValue for $name {
            const ATTRIBUTE: Attribute = Attribute { name: $attribute, values: &[$($text,)+] };

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

attribute! {
    /// How the layer has answered a request.
    RequestOutcome("campanile.request.outcome") {
        /// The handler ran, and its success is recorded.
        Processed = "processed",
        /// The key was COMPLETED before.
        Duplicate = "duplicate",
        /// The key is FAILED.
        GivenUp = "given_up",
        /// The handler ran without a lock.
        WithoutLock = "without_lock",
        /// The request has no key.
        MissingKey = "missing_key",
        /// The extractor failed.
        InvalidKey = "invalid_key",
        /// Another owner holds the lock.
        Locked = "locked",
        /// The key's backoff runs.
        BackingOff = "backing_off",
        /// The key was used for another payload.
        Mismatch = "mismatch",
        /// No attempt is left.
        Exhausted = "exhausted",
        /// The handler failed or panicked.
        AttemptFailed = "attempt_failed",
        /// The lock was lost while the handler ran, or its completion was refused.
        LockLost = "lock_lost",
        /// The store did not answer, or its entry cannot be read.
        StoreError = "store_error",
        /// The keeper grants no locks any more.
        ShuttingDown = "shutting_down",
        /// The future was dropped while the handler ran.
        Dropped = "dropped",
        /// The inner service is not ready, or failed without a lock.
        ServiceError = "service_error",
    }
}

attribute! {
    /// Where the answer to a duplicate comes from.
    DuplicateCause("campanile.duplicate.cause") {
        /// The same record has completed the key: it is delivered again.
        Redelivery = "redelivery",
        /// Another record has completed the key: a producer has repeated it, or has used its key again.
        Repeat = "repeat",
        /// The key was COMPLETED when the request arrived, and by which record is not known.
        Unknown = "unknown",
        /// The request has waited for another one in this process.
        LocalRun = "local_run",
        /// The request has waited for the lock of another process.
        OtherProcess = "other_process",
    }
}

attribute! {
    /// What the idempotency layer would have done with a request that was only observed.
    ObservedVerdict("campanile.observed.verdict") {
        /// Run the handler: the key is new.
        First = "first",
        /// Run the handler: earlier attempts have failed or have never ended.
        Retry = "retry",
        /// Answer without running the handler: the key is COMPLETED.
        Duplicate = "duplicate",
        /// Wait: another run holds the lock of the key.
        InProgress = "in_progress",
        /// Wait: the key's backoff runs.
        BackingOff = "backing_off",
        /// Not run the handler: the key is FAILED, or has no attempt left.
        GivenUp = "given_up",
        /// Refuse the request: the key was used for another payload.
        Mismatch = "mismatch",
        /// Refuse the request: it has no key.
        MissingKey = "missing_key",
        /// Refuse the request: the extractor failed.
        InvalidKey = "invalid_key",
        /// Fail: the key's entry cannot be read.
        Unreadable = "unreadable",
        /// Fail: the store did not answer.
        Unavailable = "unavailable",
        /// Unknown: too many observations were unfinished, or the process was shutting down.
        NotObserved = "not_observed",
    }
}

attribute! {
    /// Where an observed duplicate comes from.
    ObservedOrigin("campanile.observed.duplicate.origin") {
        /// The record that has completed the key was delivered again.
        Redelivery = "redelivery",
        /// Another record has completed the key.
        Repeat = "repeat",
        /// The position of one of the records is not known.
        Unknown = "unknown",
    }
}

attribute! {
    /// Why a handler ran without a lock.
    UnguardedCause("campanile.unguarded.cause") {
        /// The request has no key.
        MissingKey = "missing_key",
        /// The store was unavailable, and the predicate of the layer allowed it.
        StoreUnavailable = "store_unavailable",
    }
}

attribute! {
    /// Why a lock was lost.
    LockLoss("campanile.lock.loss.cause") {
        /// The entry belongs to another grant, or is gone.
        Superseded = "superseded",
        /// No renewal was confirmed in time.
        Expired = "expired",
        /// The lock was held for longer than `max_hold`.
        MaxHold = "max_hold",
    }
}

attribute! {
    /// How an attempt is settled in the store.
    SettlementKind("campanile.settlement") {
        /// The handler has succeeded.
        Complete = "complete",
        /// The attempt has failed.
        Fail = "fail",
        /// The attempt is not counted.
        Release = "release",
        /// There will be no further attempt.
        GiveUp = "give_up",
    }
}

attribute! {
    /// An operation of the store.
    StoreOperation("campanile.store.operation") {
        /// Takes a lock.
        Acquire = "acquire",
        /// Keeps a lock.
        Renew = "renew",
        /// Records a step of a handler.
        RecordStep = "record_step",
        /// Settles an attempt, or cancels an acquire.
        Settle = "settle",
    }
}

attribute! {
    /// The kind of a store's error.
    StoreErrorType("error.type") {
        /// The store was not reachable, or refused the command.
        Unavailable = "unavailable",
        /// The store did not answer in time.
        Timeout = "timeout",
        /// The answer or the entry cannot be read.
        Unreadable = "unreadable",
        /// Too many commands are unanswered.
        Overloaded = "overloaded",
        /// The configuration contradicts what is stored.
        Misconfigured = "misconfigured",
    }
}

attribute! {
    /// What Redis has lost.
    RedisLoss("campanile.redis.loss") {
        /// The last completion that it had acknowledged, in a restart or a failover.
        Completions = "completions",
        /// A whole namespace.
        Namespace = "namespace",
    }
}

attribute! {
    /// How the consumer has finished or dropped a record.
    RecordOutcome("campanile.record.outcome") {
        /// The service returned `Ok`.
        Processed = "processed",
        /// Given up without a dead letter.
        Skipped = "skipped",
        /// Published to a dead-letter topic.
        DeadLettered = "dead_lettered",
        /// Published to a retry topic.
        Deferred = "deferred",
        /// Dropped because its partition was revoked, stopped or sought.
        Revoked = "revoked",
        /// Dropped at the end of serving.
        Unfinished = "unfinished",
    }
}

attribute! {
    /// Why an attempt of the consumer did not finish its record.
    ErrorType("error.type") {
        /// The handler failed or panicked behind the layer.
        AttemptFailed = "attempt_failed",
        /// The key's backoff runs.
        BackingOff = "backing_off",
        /// The record does not decode.
        Decode = "decode",
        /// A dependency of the handler is unavailable.
        DependencyUnavailable = "dependency_unavailable",
        /// No attempt is left.
        Exhausted = "exhausted",
        /// The key's extractor failed.
        InvalidKey = "invalid_key",
        /// The lock was lost.
        LockLost = "lock_lost",
        /// Another owner holds the lock.
        Locked = "locked",
        /// The key was used for another payload.
        Mismatch = "mismatch",
        /// The record has no key.
        MissingKey = "missing_key",
        /// No service serves the topic.
        NoRoute = "no_route",
        /// The service panicked outside of the layer.
        Panicked = "panicked",
        /// The keeper grants no locks any more.
        ShuttingDown = "shutting_down",
        /// The store is not configured as its data requires.
        StoreMisconfigured = "store_misconfigured",
        /// The store did not answer.
        StoreUnavailable = "store_unavailable",
        /// The key's entry cannot be read.
        StoreUnreadable = "store_unreadable",
        /// Another error of the service.
        Other = "_OTHER",
    }
}

attribute! {
    /// Why the brokers did not confirm a commit or a message.
    DeliveryError("error.type") {
        /// A rebalance came first, or the brokers refuse it.
        Refused = "refused",
        /// The message is too large.
        TooLarge = "too_large",
        /// The topic does not accept the message's timestamp.
        Timestamp = "invalid_timestamp",
        /// The brokers did not answer in time, or another error.
        Other = "_OTHER",
    }
}

attribute! {
    /// What has happened to the log of a partition.
    LogChangeKind("campanile.log_change.kind") {
        /// The topic was deleted and recreated.
        Recreated = "recreated",
        /// Records were deleted before they were read.
        Deleted = "deleted",
        /// Records that were read are no longer in the log.
        Truncated = "truncated",
    }
}

attribute! {
    /// What a rebalance has done.
    RebalanceKind("campanile.rebalance.kind") {
        /// Partitions were assigned.
        Assigned = "assigned",
        /// Partitions were revoked, after they were drained and committed.
        Revoked = "revoked",
        /// The group has removed the consumer.
        Lost = "lost",
    }
}

attribute! {
    /// Why the consumer is paused.
    PauseCause("campanile.pause.cause") {
        /// By its handle.
        Handle = "handle",
        /// By the flood limit of dead letters.
        FloodLimit = "flood_limit",
    }
}

attribute! {
    /// The state of an assigned partition.
    PartitionState("campanile.partition.state") {
        /// Records are started.
        Active = "active",
        /// Paused through the handle.
        Paused = "paused",
        /// Stopped at a record.
        Stopped = "stopped",
    }
}
