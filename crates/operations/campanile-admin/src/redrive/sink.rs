//! Produces records back, and parks letters.

use std::borrow::Cow;
use std::sync::Arc;

use campanile_core::{ConfigError, Output};
use campanile_kafka::{PublishError, Publisher, PublisherConfig};
use tower_service::Service;

use super::letter::Letter;
use super::report::{LetterOutcome, LetterReport};
use crate::AdminError;

/// What is to be done with a letter once the store has answered.
pub(super) enum Verb {
    /// Produce the record. The outcome is this one, for this reason.
    Produce(LetterOutcome, &'static str),
    Skip(&'static str),
    Park(Cow<'static, str>),
    Wait,
    Filter,
}

/// Settings for small batches, which are ten times as fast as none. The size is below any limit that
/// a topic is likely to have.
const BATCHES: &[(&str, &str)] =
    &[("batch.num.messages", "1000"), ("batch.size", "16384"), ("linger.ms", "5")];

pub(super) struct Sink {
    publisher: Publisher,
    /// Publishes what a topic refuses in a batch: all messages of a batch are refused together, even
    /// if only one of them is too large.
    unbatched: Publisher,
    parking_topic: Option<Arc<str>>,
}

impl Sink {
    pub(super) fn new(
        config: PublisherConfig,
        parking_topic: Option<Arc<str>>,
    ) -> Result<Self, ConfigError> {
        let batched =
            BATCHES.iter().fold(config.clone(), |config, &(name, value)| config.set(name, value));
        Ok(Self {
            publisher: Publisher::new(batched)?,
            unbatched: Publisher::new(config)?,
            parking_topic,
        })
    }

    /// Produces or parks a letter. `None` if the letter has to wait.
    pub(super) async fn act(
        &self,
        letter: &Letter,
        verb: Verb,
    ) -> Result<Option<LetterReport>, AdminError> {
        let report = |outcome, detail: Cow<'static, str>| {
            Ok(Some(LetterReport::new(letter, outcome, detail)))
        };
        match verb {
            Verb::Filter => report(LetterOutcome::Filtered, "not selected".into()),
            Verb::Skip(why) => report(LetterOutcome::Skipped, why.into()),
            Verb::Wait => Ok(None),
            Verb::Park(why) => self.park(letter, why).await,
            Verb::Produce(outcome, detail) => match letter.restore() {
                None => self.park(letter, "its record is not in the letter".into()).await,
                Some(record) => match self.publish(record).await {
                    Ok(()) => report(outcome, detail.into()),
                    Err(PublishError::TooLarge) => {
                        self.park(letter, "its record is too large for its topic".into()).await
                    }
                    Err(error) => {
                        let at = letter.record.coordinates();
                        let action = format!("cannot produce the record of {at} back to Kafka");
                        Err(AdminError::unavailable(action, error))
                    }
                },
            },
        }
    }

    async fn park(
        &self,
        letter: &Letter,
        why: Cow<'static, str>,
    ) -> Result<Option<LetterReport>, AdminError> {
        let mut report = LetterReport::new(letter, LetterOutcome::Parked, why);
        if let Some(topic) = &self.parking_topic {
            match self.publish(letter.copy_to(topic)).await {
                Ok(()) => report.parked_to = Some((**topic).into()),
                Err(PublishError::TooLarge) => report
                    .detail
                    .to_mut()
                    .push_str("; the letter is too large for the parking topic"),
                Err(error) => {
                    let at = letter.record.coordinates();
                    let action = format!("cannot copy {at} to the parking topic on Kafka");
                    return Err(AdminError::unavailable(action, error));
                }
            }
        }
        Ok(Some(report))
    }

    /// Publishes a message, without its timestamp if the topic does not accept that.
    async fn publish(&self, mut message: Output) -> Result<(), PublishError> {
        match self.publisher.clone().call(message.clone()).await {
            Err(PublishError::TooLarge | PublishError::Timestamp) => {}
            result => return result,
        }
        let mut unbatched = self.unbatched.clone();
        match unbatched.call(message.clone()).await {
            Err(PublishError::Timestamp) => {
                message.timestamp = None;
                unbatched.call(message).await
            }
            result => result,
        }
    }
}
