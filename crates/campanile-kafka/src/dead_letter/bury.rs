//! From a record that is given up to an entry that is FAILED.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use campanile_core::{BoxError, ConfigError, FencingToken, Lock, Output, Record};
use campanile_idempotency::IdempotencyError;
use futures_util::future::{Either, select};
use rdkafka::ClientConfig;

use super::policy::DeadLetter;
use super::topic::Topic;
use super::{Cause, HeaderStyle, Letter};
use crate::given_up::{Burial, leave, skip};
use crate::publish::{Publisher, Refused};
use crate::retry_topics::origin;

/// From this burial on a letter has no payload: one before was interrupted, maybe by its fault. Those
/// that were let go in order are not counted.
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
}

/// Why a record is not buried. It is not committed, and is dealt with again later.
#[derive(Debug)]
pub(crate) enum Unburied {
    /// It could not be published within the budget, and what would help. Its lock, if it had one, is
    /// let go.
    Unpublished { topic: Option<Arc<str>>, error: String, help: &'static str },
    /// So many burials were interrupted, but for this one, that nothing is published any more. Its lock
    /// is let go.
    Stuck { burials: u32 },
    /// Its lock was lost, or its entry cannot be written.
    Unsettled(BoxError),
}

/// What of a record its letter has.
#[derive(Clone, Copy)]
struct Form {
    /// Neither the payload nor what else is large.
    truncated: bool,
    /// The record's time.
    timed: bool,
}

impl DeadLetters {
    /// Settings that the producer does not take are refused.
    pub(crate) fn new(
        policy: DeadLetter,
        consumer: &ClientConfig,
        group: &str,
    ) -> Result<Self, ConfigError> {
        let publisher = Publisher::beside(consumer, &policy.terms)?;
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
        let burials = burial.number();
        if burials >= STUCK_FROM {
            leave(burial).await.map_err(unsettled)?;
            return Err(Unburied::Stuck { burials });
        }
        let topic = self.topic_of(&dead.record.origin().topic).map_err(|error| {
            let help = "correct what chooses the topic, and start again";
            Unburied::Unpublished { topic: None, error, help }
        })?;
        let truncated = burials >= TRUNCATED_FROM;
        let published = self.publish_under(burial.lock(), &topic, &dead, truncated).await?;
        let Form { truncated, .. } = published.map_err(|refused| Unburied::Unpublished {
            topic: Some(topic.clone()),
            error: refused.to_string(),
            help: help(&refused),
        })?;
        tracing::warn!(
            record = %dead.record.coordinates(),
            origin = origin(&dead.record),
            topic = &*topic,
            truncated,
            error = dead.reason,
            "given up: dead-lettered"
        );
        skip(burial, dead.reason).await.map_err(unsettled)
    }

    /// As long as the lock holds: it is looked at first, for an attempt may outlive it.
    async fn publish_under(
        &self,
        lock: Option<&Lock>,
        topic: &Arc<str>,
        dead: &Dead,
        truncated: bool,
    ) -> Result<Result<Form, Refused>, Unburied> {
        let Some(lock) = lock else {
            return Ok(self.publish(topic, dead, None, truncated).await);
        };
        let publication = pin!(self.publish(topic, dead, Some(lock.token()), truncated));
        match select(lock.lost(), publication).await {
            // Whoever has it now buries the record, or tries it.
            Either::Left((lost, _)) => Err(unsettled(IdempotencyError::LockLost(lost))),
            Either::Right((published, _)) => Ok(published),
        }
    }

    /// In the form that the topic takes; gives that.
    async fn publish(
        &self,
        topic: &Arc<str>,
        dead: &Dead,
        token: Option<FencingToken>,
        truncated: bool,
    ) -> Result<Form, Refused> {
        let mut form = Form { truncated, timed: true };
        loop {
            let message = self.message(topic, dead, token, form);
            match self.publisher.publish(&message).await {
                Err(Refused::TooLarge) if !form.truncated => form.truncated = true,
                Err(Refused::Timestamp) if form.timed => form.timed = false,
                result => return result.map(|()| form),
            }
        }
    }

    fn message(
        &self,
        topic: &Arc<str>,
        Dead { record, cause, .. }: &Dead,
        token: Option<FencingToken>,
        Form { truncated, timed }: Form,
    ) -> Output {
        let letter = Letter { record, group: &self.group, cause, token, truncated };
        let small = |key: &&Bytes| !truncated || key.len() <= KEPT_KEY;
        let mut message = Output::to(topic.clone());
        message.key = record.key().filter(small).cloned();
        message.payload = record.payload().filter(|_| !truncated).cloned();
        message.timestamp = record.timestamp().filter(|_| timed);
        message.headers = letter.headers(self.headers);
        message
    }
}

/// What would help against it.
fn help(refused: &Refused) -> &'static str {
    match refused {
        Refused::TooLarge => {
            "it is too large even without its payload: raise the topic's `max.message.bytes`, or the \
             producer's if that is set"
        }
        Refused::Timestamp => "the topic takes it neither with the record's time nor without",
        Refused::Otherwise(_) => "create the topic, allow writing to it, or bring its brokers back",
    }
}

fn unsettled(error: IdempotencyError) -> Unburied {
    Unburied::Unsettled(error.into())
}
