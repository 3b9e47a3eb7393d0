//! What happens to records that were not processed: dead letters and retry topics, as the driver sees them.

mod dead_letter;
mod on_give_up;
mod retry_topics;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use campanile_core::{ConfigError, Record};
use campanile_driver::ConsumerError;
use campanile_driver::epilogue::{Epilogue, EpilogueResult, GivenUp, RetryElsewhere, Unfinished};
use campanile_driver::private::origin;
use campanile_driver::source::Delay;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use self::dead_letter::{Cause, GivenUpRecord};
pub use self::dead_letter::{DeadLetter, InvalidLetter, LetterHeaders, LetterLock};
pub(crate) use self::dead_letter::{DeadLetterTargets, DeadLetters};
pub use self::on_give_up::OnGiveUp;
pub use self::retry_topics::RetryTopics;
pub(crate) use self::retry_topics::{OriginHeaders, RetryPublisher, RetryTopicList, SourceTopics};

/// Publishes the records that were not processed.
pub(crate) struct Publications {
    /// `None` if records that are given up are not published.
    pub(crate) letters: Option<Arc<DeadLetters>>,
    pub(crate) targets: Mutex<DeadLetterTargets>,
    pub(crate) retry_publisher: Option<Arc<RetryPublisher>>,
    pub(crate) source_topics: SourceTopics,
}

impl Epilogue for Publications {
    fn check_topic(&self, topic: &Arc<str>) -> Result<(), ConfigError> {
        let Some(letters) = &self.letters else { return Ok(()) };
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.add(letters, topic)
    }

    fn check_delayed(&self, record: &Record) -> Result<(), ConsumerError> {
        self.source_topics.check(record)
    }

    fn retry(
        &self,
        record: &Record,
        from: Option<Delay>,
        after: Option<Duration>,
    ) -> Option<RetryElsewhere> {
        let publisher = self.retry_publisher.clone()?;
        let to = publisher.next_topic(after, from).clone();
        let (topic, record, start) = (to.topic.clone(), record.clone(), Instant::now());
        let published = Box::pin(async move {
            publisher.publish(&record, &topic).await.map_err(|error| {
                tracing::warn!(
                    record = %record.coordinates(),
                    origin = origin(&record),
                    retry_topic = &*topic,
                    %error,
                    "failed to publish to the retry topic; retrying in place"
                );
                let after = after.map(|after| after.saturating_sub(start.elapsed()));
                Unfinished::Kept { after, failure: None }
            })
        });
        Some(RetryElsewhere { topic: to.topic, after: to.delay.time, published })
    }

    fn give_up(&self, given_up: GivenUp<'_>) -> BoxFuture<'static, EpilogueResult> {
        let letters = self.letters.clone().expect("the policy is a dead-letter topic");
        let GivenUp { record, error, reason, lock, is_repeated } = given_up;
        let dead = GivenUpRecord { record, cause: Cause::of(error), reason, is_repeated };
        Box::pin(async move { letters.give_up(dead, lock).await })
    }
}
