//! Buries records that were given up: publishes the dead letter, then makes the entry FAILED.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{ConfigError, LockHandle, Output, Record};
use campanile_driver::epilogue::{
    EpilogueResult, Failure, GiveUpLock, Unfinished, give_up, settle_for_stop,
};
use campanile_driver::private::origin;
use campanile_idempotency::IdempotencyError;
use futures_util::future::{Either, select};

use super::policy::DeadLetter;
use super::topic::TopicChoice;
use super::{Cause, Letter, LetterLock};
use crate::client::ClientSettings;
use crate::publish::{PublishError, Publisher};

/// From this give-up on, a letter has no payload: an earlier give-up was interrupted, and the payload
/// may be the reason. Give-ups that ended cleanly are not counted.
const TRUNCATE_FROM_BURIAL: u32 = 2;

/// From this give-up on, nothing is published any more.
const STOP_FROM_BURIAL: u32 = 5;

/// The longest record key, in bytes, that a truncated letter keeps.
const MAX_KEPT_KEY: usize = 16 * 1024;

/// Publishes dead letters.
pub(crate) struct DeadLetters {
    publisher: Publisher,
    topic: TopicChoice,
    group: Arc<str>,
}

/// A record that was given up.
pub(crate) struct GivenUpRecord {
    pub(crate) record: Record,
    pub(crate) cause: Cause,
    /// The reason that is stored in its entry.
    pub(crate) reason: String,
    /// Whether the record was given up before, and kept.
    pub(crate) is_repeated: bool,
}

/// The retry interval of a record after too many interrupted give-ups. An operator may have reopened
/// its key in the meantime.
const STUCK_RETRY_INTERVAL: Duration = Duration::from_secs(5 * 60);

impl DeadLetters {
    /// Creates the publisher of dead letters.
    ///
    /// # Errors
    /// Fails if the producer rejects a setting.
    pub(crate) fn new(
        policy: DeadLetter,
        consumer: &ClientSettings,
        group: &str,
    ) -> Result<Self, ConfigError> {
        let publisher = Publisher::with_consumer_config(consumer, &policy.publish_settings)?;
        Ok(Self { publisher, topic: policy.topic, group: group.into() })
    }

    /// Finds the dead-letter topic of a source topic. The error says why there is none.
    pub(crate) fn topic_of(&self, source: &str) -> Result<Arc<str>, String> {
        self.topic.resolve(source)
    }

    /// Publishes the record's dead letter, then makes its entry FAILED. The record's offset may be
    /// committed only after this returns `Ok`. Otherwise the record is handled again later, and its lock,
    /// if it had one, is dropped, or settled after too many interrupted give-ups.
    ///
    /// # Cancellation
    /// If the future is dropped, the lock is dropped with it. The letter may still be published.
    pub(crate) async fn give_up(
        &self,
        dead: GivenUpRecord,
        giving_up: GiveUpLock,
    ) -> EpilogueResult {
        let give_ups = giving_up.give_ups();
        if give_ups >= STOP_FROM_BURIAL {
            settle_for_stop(giving_up).await.map_err(unsettled)?;
            return Err(stuck(&dead.record, give_ups));
        }
        let topic = self.topic_of(&dead.record.origin().topic).map_err(|error| {
            let help = "fix the function that chooses the topic, then restart";
            unpublished(&dead, None, error, help)
        })?;
        let truncated = give_ups >= TRUNCATE_FROM_BURIAL;
        let published =
            self.publish_while_locked(giving_up.lock_handle(), &topic, &dead, truncated).await?;
        let truncated = published.map_err(|refused| {
            unpublished(&dead, Some(&topic), refused.to_string(), help(&refused))
        })?;
        tracing::warn!(
            record = %dead.record.coordinates(),
            origin = origin(&dead.record),
            topic = &*topic,
            truncated,
            error = dead.reason,
            "record given up and dead-lettered"
        );
        give_up(giving_up, dead.reason).await.map_err(unsettled)
    }

    /// Publishes the letter while the lock is held, as [`publish`](Self::publish) does. The loss of
    /// the lock is polled first, because an attempt may outlive its lock.
    async fn publish_while_locked(
        &self,
        lock: Option<&LockHandle>,
        topic: &Arc<str>,
        dead: &GivenUpRecord,
        truncated: bool,
    ) -> Result<Result<bool, PublishError>, Unfinished> {
        let Some(lock) = lock else {
            return Ok(self.publish(topic, dead, None, truncated).await);
        };
        let letter_lock = LetterLock { namespace: lock.namespace().clone(), token: lock.token() };
        let publication = pin!(self.publish(topic, dead, Some(&letter_lock), truncated));
        match select(lock.lost(), publication).await {
            // The new owner of the lock gives up the record, or tries it again.
            Either::Left((lost, _)) => Err(unsettled(IdempotencyError::LockLost(lost))),
            Either::Right((published, _)) => Ok(published),
        }
    }

    /// Publishes the letter, truncated if it is too large for the topic. Returns whether it is
    /// truncated.
    async fn publish(
        &self,
        topic: &Arc<str>,
        dead: &GivenUpRecord,
        lock: Option<&LetterLock>,
        mut truncated: bool,
    ) -> Result<bool, PublishError> {
        loop {
            let message = self.message(topic, dead, lock, truncated);
            match self.publisher.publish(&message).await {
                Err(PublishError::TooLarge) if !truncated => truncated = true,
                result => return result.map(|()| truncated),
            }
        }
    }

    /// Creates the letter. Truncated, it has no payload and neither a large key nor large headers.
    ///
    /// Its timestamp is the time of its publication, because the topic's retention is measured from
    /// it: the brokers would soon delete the letter of an old record.
    fn message(
        &self,
        topic: &Arc<str>,
        GivenUpRecord { record, cause, .. }: &GivenUpRecord,
        lock: Option<&LetterLock>,
        truncated: bool,
    ) -> Output {
        let letter = Letter { record, group: &self.group, cause, lock, truncated };
        let small = |key: &&Bytes| !truncated || key.len() <= MAX_KEPT_KEY;
        let mut message = Output::to(topic.clone());
        message.key = record.key().filter(small).cloned();
        message.payload = record.payload().filter(|_| !truncated).cloned();
        message.headers = letter.headers();
        message
    }
}

/// Says what to do about a refused publication.
fn help(refused: &PublishError) -> &'static str {
    match refused {
        PublishError::TooLarge => {
            "the record is too large even without its payload: raise the topic's \
             `max.message.bytes`, or the producer's `message.max.bytes` if that is set"
        }
        PublishError::Timestamp => {
            "correct this machine's clock, or the topic's limits of timestamps"
        }
        PublishError::Otherwise(_) => {
            "create the topic, allow writes to it, or restore its brokers"
        }
    }
}

/// Logs that the letter could not be published within the budget, and keeps the record's place. The
/// first failure is logged at ERROR with `help`, which says what to do, to alert an operator; repeated
/// failures are logged at WARN.
fn unpublished(dead: &GivenUpRecord, topic: Option<&str>, error: String, help: &str) -> Unfinished {
    let (at, origin) = (dead.record.coordinates(), origin(&dead.record));
    if dead.is_repeated {
        tracing::warn!(
            record = %at,
            origin,
            topic,
            error,
            "failed to publish the dead letter again; retrying"
        );
    } else {
        tracing::error!(
            record = %at,
            origin,
            topic,
            error,
            "failed to publish the dead letter; retrying while its partition waits: {help}"
        );
    }
    kept(None, error)
}

/// Logs that too many give-ups of this record were interrupted, so that nothing is published any more.
fn stuck(record: &Record, give_ups: u32) -> Unfinished {
    tracing::error!(
        record = %record.coordinates(),
        origin = origin(record),
        give_ups,
        "every give-up was interrupted, and the partition is stalled: find out what ends the process \
         while the dead letter is published, then reopen the key"
    );
    kept(Some(STUCK_RETRY_INTERVAL), "every give-up was interrupted".to_owned())
}

fn kept(after: Option<Duration>, error: String) -> Unfinished {
    let failure = Some(Failure { error, waits_for: "the publication of its dead letter" });
    Unfinished::Kept { after, failure }
}

fn unsettled(error: IdempotencyError) -> Unfinished {
    Unfinished::Unsettled(error.into())
}
