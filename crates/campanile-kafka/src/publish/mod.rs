//! Publishing to any topic, and waiting for the brokers' acknowledgement.

mod context;
mod message;
mod settings;
mod terms;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{ConfigError, Output};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::producer::{Producer, ThreadedProducer};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use self::context::Acknowledgements;
pub(crate) use self::message::{record, size};
pub(crate) use self::settings::shared as shared_settings;
pub(crate) use self::terms::Terms;
use crate::backoff::impatient;
use crate::config::refusal;

/// How long one try may take, where the budget leaves room for several: brokers that are restarted
/// are back in less, and a topic that was just created is known everywhere.
const TRY: Duration = Duration::from_secs(30);

/// A producer whose publications are acknowledged by all replicas that are in sync. Clones share it.
#[derive(Clone)]
pub(crate) struct Publisher {
    producer: Arc<Closing>,
    budget: Duration,
    /// How long one try takes at most.
    longest: Duration,
}

impl Publisher {
    /// A producer for the consumer's brokers, with settings of its own over the consumer's. One
    /// publication may take as long as the budget says.
    pub(crate) fn new(consumer: &ClientConfig, terms: &Terms) -> Result<Self, ConfigError> {
        let budget = terms.budget;
        // At least two tries.
        let longest = TRY.min(budget / 2);
        let client = settings::producer(consumer, &terms.settings, longest)?;
        let context = Acknowledgements::default();
        let producer = ThreadedProducer::from_config_and_context(&client, context);
        let producer = Arc::new(Closing(Some(producer.map_err(refusal)?)));
        Ok(Self { producer, budget, longest })
    }

    /// Publishes it, and waits until the brokers have it. What they refuse is tried again within the
    /// budget, but for what is too large or has a time that they do not take: neither would change.
    ///
    /// When this gives an error, nothing of it is on its way any more. It may have been published all
    /// the same if no answer came.
    ///
    /// # Cancellation
    /// Dropped, it tries no more; what was sent may be published.
    pub(crate) async fn publish(&self, message: &Output) -> Result<(), Refused> {
        let start = Instant::now();
        let mut tries = 0_u32;
        loop {
            let sent = match self.send(message) {
                // Gone unanswered only with the producer.
                Ok(answer) => answer.await.unwrap_or(Err(KafkaError::Canceled)),
                Err(error) => Err(error),
            };
            let error = match sent {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let refused = Refused::of(&error, self.producer().context().take_reason());
            let Refused::Otherwise(text) = &refused else {
                return Err(refused);
            };
            tries += 1;
            let delay = impatient().delay(tries);
            if start.elapsed() + delay + self.longest > self.budget {
                return Err(refused);
            }
            if tries == 1 {
                let topic = &*message.topic;
                tracing::warn!(topic, error = text, "not published yet, to be tried again");
            }
            sleep(delay).await;
        }
    }

    /// One try. Gives its answer.
    fn send(&self, message: &Output) -> KafkaResult<oneshot::Receiver<KafkaResult<()>>> {
        let (waiting, answer) = oneshot::channel();
        let sent = self.producer().send(record(message, Box::new(waiting)));
        sent.map(|()| answer).map_err(|(error, _)| error)
    }

    fn producer(&self) -> &ThreadedProducer<Acknowledgements> {
        self.producer.0.as_ref().expect("taken only when it is dropped")
    }
}

/// Why a message was not published.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Too large for the topic, or for the producer.
    TooLarge,
    /// The topic does not take messages of its time.
    Timestamp,
    /// For another reason, until the budget was used up.
    Otherwise(String),
}

impl Refused {
    fn of(error: &KafkaError, reason: Option<String>) -> Self {
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge) => Self::TooLarge,
            Some(Code::InvalidTimestamp) => Self::Timestamp,
            // The reason of a time-out is what the connection has met.
            Some(Code::MessageTimedOut) => Self::Otherwise(
                reason.map_or_else(|| error.to_string(), |r| format!("{error}: {r}")),
            ),
            _ => Self::Otherwise(error.to_string()),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("too large for the topic: raise its `max.message.bytes`"),
            Self::Timestamp => f.write_str("the topic does not take messages of this time"),
            Self::Otherwise(text) => f.write_str(text),
        }
    }
}

/// A producer that is dropped on a thread of its own: that joins its threads.
struct Closing(Option<ThreadedProducer<Acknowledgements>>);

impl Drop for Closing {
    fn drop(&mut self) {
        let producer = self.0.take();
        // Without a thread it is dropped here, with the closure.
        let _ = std::thread::Builder::new()
            .name("campanile-publish".into())
            .spawn(move || drop(producer));
    }
}

#[cfg(test)]
mod tests {
    use campanile_test::MockKafka;
    use rdkafka::ClientContext as _;

    use super::*;

    const BUDGET: Duration = Duration::from_secs(2);

    fn message() -> Output {
        Output::to("dead")
    }

    #[tokio::test]
    async fn who_cannot_reach_the_brokers_is_told_what_the_connection_met() {
        let mut consumer = ClientConfig::new();
        consumer.set("bootstrap.servers", "127.0.0.1:1");
        let publisher = Publisher::new(&consumer, &Terms::new(BUDGET)).unwrap();
        let refused = publisher.publish(&message()).await.unwrap_err().to_string();
        let (_, met) =
            refused.split_once("Message timed out): ").unwrap_or_else(|| panic!("{refused}"));
        // Whichever the connection said last.
        assert!(met.contains("127.0.0.1:1") || met.contains("brokers are down"), "{refused}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_the_connection_met_before_something_was_published_is_not_told_afterwards() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("dead", 1).unwrap();
        let config = kafka.consumer_config("g");
        let publisher = Publisher::new(&config, &Terms::new(BUDGET)).unwrap();
        let context = publisher.producer().context();
        context.error(KafkaError::Canceled, "an old trouble");
        publisher.publish(&message()).await.unwrap();
        assert_eq!(context.take_reason(), None);
    }
}
