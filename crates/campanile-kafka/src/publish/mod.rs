//! Publishing to any topic, and waiting for the brokers' acknowledgement.

mod config;
mod context;
mod message;
mod refused;
mod service;
mod settings;
mod terms;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{ConfigError, Output};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{Producer, ThreadedProducer};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

pub use self::config::PublisherConfig;
use self::context::Acknowledgements;
pub(crate) use self::message::record;
pub use self::refused::Refused;
pub(crate) use self::settings::shared as shared_settings;
pub(crate) use self::terms::Terms;
use crate::backoff::impatient;
use crate::config::refusal;

/// How long one try may take, where the budget leaves room for several: brokers that are restarted
/// are back in less, and a topic that was just created is known everywhere.
const TRY: Duration = Duration::from_secs(30);

/// Publishes messages, each acknowledged by all replicas that are in sync: a tower service of [`Output`]s,
/// such as the outbox of `campanile-postgres` needs. Clones share one producer.
///
/// ```
/// use campanile_core::{BoxError, Output};
/// use campanile_kafka::Publisher;
/// use tower::{Service, ServiceExt};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), BoxError> {
/// # let kafka = campanile_test::MockKafka::start(1)?;
/// # kafka.create_topic("invoices", 3)?;
/// # let brokers = kafka.bootstrap();
/// let mut publisher = Publisher::new(brokers)?;
/// let invoice = Output::to("invoices").key("account-7").payload("100");
/// publisher.ready().await?.call(invoice).await?;
/// # Ok(())
/// # }
/// ```
///
/// The producer is idempotent: what it sends again, because no answer came, is there once. That ends with
/// the publication: who calls again publishes again.
///
/// # Order
/// Messages that are published at the same time have none. Who needs one waits for the acknowledgement.
///
/// # Errors
/// [`Refused`], after [a time](PublisherConfig::with_timeout) in which it is tried again. Then nothing of the
/// message is on its way any more; it may have been published all the same if no answer came.
///
/// # Cancellation
/// Dropped, it tries no more; what was sent may be published.
#[derive(Clone)]
pub struct Publisher {
    shared: Arc<Shared>,
    budget: Duration,
    /// How long one try takes at most.
    longest: Duration,
}

struct Shared {
    client: ClientConfig,
    producer: Mutex<Arc<Closing>>,
}

impl Publisher {
    /// For these brokers (`host:port`, separated by commas), or with more [settings](PublisherConfig).
    ///
    /// # Errors
    /// If a setting is unknown to librdkafka, or contradicts what a publication is.
    pub fn new(config: impl Into<PublisherConfig>) -> Result<Self, ConfigError> {
        let (client, terms) = config.into().checked()?;
        Self::beside(&client, &terms)
    }

    /// A producer for the consumer's brokers, with settings of its own over the consumer's. One
    /// publication may take as long as the budget says.
    pub(crate) fn beside(consumer: &ClientConfig, terms: &Terms) -> Result<Self, ConfigError> {
        let budget = terms.budget;
        // At least two tries.
        let longest = TRY.min(budget / 2);
        let client = settings::producer(consumer, &terms.settings, longest)?;
        let producer = Mutex::new(Arc::new(Closing::new(&client)?));
        Ok(Self { shared: Arc::new(Shared { client, producer }), budget, longest })
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
            let closing = self.shared.producer().clone();
            let producer = closing.producer();
            let sent = match send(producer, message) {
                // Gone unanswered only with the producer.
                Ok(answer) => answer.await.unwrap_or(Err(KafkaError::Canceled)),
                Err(error) => Err(error),
            };
            let error = match sent {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let refused = Refused::of(&error, producer.context().take_reason());
            if let Some((code, reason)) = producer.client().fatal_error() {
                self.shared.replace(&closing, &format!("{code}: {reason}"));
            }
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
}

impl Shared {
    fn producer(&self) -> MutexGuard<'_, Arc<Closing>> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This one sends nothing any more: an idempotent producer does so when it cannot know what of it is
    /// there, as after a loss of data.
    fn replace(&self, broken: &Arc<Closing>, reason: &str) {
        let mut producer = self.producer();
        if Arc::ptr_eq(&producer, broken) {
            tracing::warn!(reason, "the producer has failed, and is made anew");
            match Closing::new(&self.client) {
                Ok(new) => *producer = Arc::new(new),
                Err(error) => tracing::error!(%error, "the producer was not made anew"),
            }
        }
    }
}

/// One try. Gives its answer.
fn send(
    producer: &ThreadedProducer<Acknowledgements>,
    message: &Output,
) -> KafkaResult<oneshot::Receiver<KafkaResult<()>>> {
    let (waiting, answer) = oneshot::channel();
    let sent = producer.send(record(message, Box::new(waiting)));
    sent.map(|()| answer).map_err(|(error, _)| error)
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("bootstrap.servers", &self.shared.client.get("bootstrap.servers"))
            .field("timeout", &self.budget)
            .finish_non_exhaustive()
    }
}

/// A producer that is dropped on a thread of its own: that joins its threads.
struct Closing(Option<ThreadedProducer<Acknowledgements>>);

impl Closing {
    fn new(client: &ClientConfig) -> Result<Self, ConfigError> {
        let context = Acknowledgements::default();
        let producer = ThreadedProducer::from_config_and_context(client, context);
        Ok(Self(Some(producer.map_err(refusal)?)))
    }

    fn producer(&self) -> &ThreadedProducer<Acknowledgements> {
        self.0.as_ref().expect("taken only when it is dropped")
    }
}

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
        let publisher = Publisher::beside(&consumer, &Terms::new(BUDGET)).unwrap();
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
        let publisher = Publisher::beside(&config, &Terms::new(BUDGET)).unwrap();
        let producer = publisher.shared.producer().clone();
        let context = producer.producer().context();
        context.error(KafkaError::Canceled, "an old trouble");
        publisher.publish(&message()).await.unwrap();
        assert_eq!(context.take_reason(), None);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_producer_that_sends_nothing_any_more_is_made_anew() {
        use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("dead", 1).unwrap();
        let config = PublisherConfig::new(kafka.bootstrap()).with_timeout(BUDGET * 10);
        let publisher = Publisher::new(config).unwrap();
        publisher.publish(&message()).await.unwrap();
        let first = publisher.shared.producer().clone();
        let out_of_order = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        kafka.cluster().request_errors(RDKafkaApiKey::Produce, &[out_of_order]);
        publisher.publish(&message()).await.unwrap();
        assert!(first.producer().client().fatal_error().is_some());
        publisher.publish(&message()).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &publisher.shared.producer()));
    }
}
