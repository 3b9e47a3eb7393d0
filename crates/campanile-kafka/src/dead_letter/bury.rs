//! From a record that is given up to an entry that is FAILED.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use campanile_core::{BoxError, ConfigError, FencingToken, Lock, Record};
use campanile_idempotency::IdempotencyError;
use futures_util::future::{Either, select};
use rdkafka::ClientConfig;

use super::policy::DeadLetter;
use super::topic::Topic;
use super::{Cause, HeaderStyle, Letter};
use crate::given_up::{Burial, leave, skip};
use crate::publish::{Message, Publisher, Refused};

/// From this burial on a letter has no payload: those before were interrupted, maybe by its fault.
const TRUNCATED_FROM: u32 = 2;

/// From this burial on nothing is published.
const STUCK_FROM: u32 = 5;

/// The longest record key that a truncated letter keeps.
const KEPT_KEY: usize = 16 * 1024;

/// Publishes dead letters.
pub(crate) struct DeadLetters {
    publisher: Publisher,
    topic: Topic,
    headers: HeaderStyle,
    group: Arc<str>,
}

/// A record that is given up.
pub(crate) struct Dead {
    pub(crate) record: Record,
    pub(crate) cause: Cause,
    /// What its entry keeps.
    pub(crate) reason: String,
    /// How many of its burials this process has let go in order: they were no crashes.
    pub(crate) excused: u32,
}

/// Why a record is not buried. It is not committed, and is dealt with again later.
#[derive(Debug)]
pub(crate) enum Unburied {
    /// It could not be published within the budget. Its lock, if it had one, is let go.
    Unpublished { topic: Arc<str>, error: String },
    /// So many burials were begun that nothing is published any more. Its lock is let go.
    Stuck { burials: u32 },
    /// Its lock was lost, or its entry cannot be written.
    Unsettled(BoxError),
}

impl DeadLetters {
    /// Settings that the producer does not take are refused.
    pub(crate) fn new(
        policy: DeadLetter,
        consumer: &ClientConfig,
        group: &str,
    ) -> Result<Self, ConfigError> {
        let publisher = Publisher::new(consumer, &policy.settings, policy.timeout)?;
        let DeadLetter { topic, headers, .. } = policy;
        Ok(Self { publisher, topic, headers, group: group.into() })
    }

    /// The topic for dead letters of this one. An error says why there is none.
    pub(crate) fn topic_of(&self, source: &str) -> Result<Arc<str>, String> {
        self.topic.of(source)
    }

    /// Publishes the record's dead letter, and then makes its entry FAILED. Only after this is `Ok`
    /// may its offset be committed.
    ///
    /// # Cancellation
    /// Dropped, its lock is let go; the letter may be published all the same.
    pub(crate) async fn bury(&self, dead: Dead, burial: Burial) -> Result<(), Unburied> {
        let burials = burial.number().saturating_sub(dead.excused);
        if burials >= STUCK_FROM {
            leave(burial).await.map_err(unsettled)?;
            return Err(Unburied::Stuck { burials });
        }
        let unpublished = |topic, error| Err(Unburied::Unpublished { topic, error });
        let topic = match self.topic_of(&dead.record.origin().topic) {
            Ok(topic) => topic,
            Err(error) => return unpublished("none".into(), error),
        };
        let truncated = burials >= TRUNCATED_FROM;
        match self.publish_under(burial.lock(), &topic, &dead, truncated).await? {
            Ok(()) => {}
            Err(refused) => return unpublished(topic, refused.to_string()),
        }
        let record = dead.record.coordinates();
        tracing::warn!(%record, topic = &*topic, error = dead.reason, "given up: dead-lettered");
        skip(burial, dead.reason).await.map_err(unsettled)
    }

    /// As long as the lock holds.
    async fn publish_under(
        &self,
        lock: Option<&Lock>,
        topic: &Arc<str>,
        dead: &Dead,
        truncated: bool,
    ) -> Result<Result<(), Refused>, Unburied> {
        let Some(lock) = lock else {
            return Ok(self.publish(topic, dead, None, truncated).await);
        };
        let publication = pin!(self.publish(topic, dead, Some(lock.token()), truncated));
        match select(publication, lock.lost()).await {
            Either::Left((published, _)) => Ok(published),
            // Whoever has it now buries the record, or tries it.
            Either::Right((lost, _)) => Err(unsettled(IdempotencyError::LockLost(lost))),
        }
    }

    /// In the form that the topic takes.
    async fn publish(
        &self,
        topic: &Arc<str>,
        dead: &Dead,
        token: Option<FencingToken>,
        mut truncated: bool,
    ) -> Result<(), Refused> {
        let mut timed = true;
        loop {
            let message = self.message(topic, dead, token, truncated, timed);
            match self.publisher.publish(&message).await {
                Err(Refused::TooLarge) if !truncated => truncated = true,
                Err(Refused::Timestamp) if timed => timed = false,
                result => return result,
            }
        }
    }

    fn message(
        &self,
        topic: &Arc<str>,
        Dead { record, cause, .. }: &Dead,
        token: Option<FencingToken>,
        truncated: bool,
        timed: bool,
    ) -> Message {
        let letter = Letter { record, group: &self.group, cause, token, truncated };
        let small = |key: &&Bytes| !truncated || key.len() <= KEPT_KEY;
        Message {
            topic: topic.clone(),
            key: record.key().filter(small).cloned(),
            payload: record.payload().filter(|_| !truncated).cloned(),
            timestamp: record.timestamp().filter(|_| timed),
            headers: letter.headers(self.headers),
        }
    }
}

fn unsettled(error: IdempotencyError) -> Unburied {
    Unburied::Unsettled(error.into())
}
