//! Publishes to any topic, and waits for the brokers' acknowledgement.

mod config;
mod context;
mod error;
mod message;
mod producer_config;
mod service;
mod settings;
mod telemetry;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{ConfigError, Output};
use campanile_driver::private::server_backoff;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{Producer, ThreadedProducer};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

pub use self::config::PublisherConfig;
use self::context::Acknowledgements;
pub use self::error::PublishError;
pub(crate) use self::message::record;
pub(crate) use self::producer_config::shared_settings;
pub(crate) use self::settings::PublishSettings;
pub(crate) use self::telemetry::ProducerMetrics;
use crate::client::ClientSettings;
use crate::config::config_error;
use crate::log::LogLimit;
use crate::workarounds::Reconnect;

/// The timeout of one attempt, if the budget allows for several: restarted brokers are back sooner, and
/// all brokers know a newly created topic by then.
const MAX_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// A tower service that publishes [`Output`]s, each acknowledged by all in-sync replicas. The outbox of
/// `campanile-postgres` needs such a service. Clones share one producer.
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
/// The producer is idempotent: a message that it sends again because no response arrived is stored once.
/// This holds within one publication only: a second call publishes the message a second time.
///
/// A message gets the [headers of the current trace](Output::with_current_trace), unless it has some.
///
/// # Order
/// Messages that are published concurrently have no order. To order two messages, wait for the
/// acknowledgement of the first one.
///
/// # Errors
/// Returns [`PublishError`] if retries within [the timeout](PublisherConfig::with_timeout) do not succeed.
/// The message is then no longer in flight, but may have been published if no response arrived.
///
/// # Cancellation
/// Dropping the future stops the retries; a message that was sent may still be published.
#[derive(Clone)]
pub struct Publisher {
    shared: Arc<SharedProducer>,
    budget: Duration,
    /// The timeout of one attempt.
    attempt_timeout: Duration,
}

struct SharedProducer {
    client: ClientSettings,
    producer: Mutex<Arc<DropOnThread>>,
    reconnect: Reconnect,
    log_limit: LogLimit,
    metrics: ProducerMetrics,
}

impl Publisher {
    /// Creates a publisher for these brokers (`host:port`, separated by commas), or with more
    /// [settings](PublisherConfig).
    ///
    /// # Errors
    /// Fails if a setting is unknown to librdkafka, or contradicts how messages are published.
    pub fn new(config: impl Into<PublisherConfig>) -> Result<Self, ConfigError> {
        let (client, publish_settings) = config.into().checked()?;
        Self::with_consumer_config(&client, &publish_settings)
    }

    /// Creates a publisher for the consumer's brokers, with the producer's own settings over the
    /// consumer's. The budget limits the time of one publication.
    pub(crate) fn with_consumer_config(
        consumer: &ClientSettings,
        publish_settings: &PublishSettings,
    ) -> Result<Self, ConfigError> {
        let budget = publish_settings.budget;
        // Leaves time for at least two attempts.
        let attempt_timeout = MAX_ATTEMPT_TIMEOUT.min(budget / 2);
        let client =
            producer_config::producer(consumer, &publish_settings.overrides, attempt_timeout)?;
        let log_limit = LogLimit::default();
        let producer = Mutex::new(Arc::new(DropOnThread::new(&client, &log_limit)?));
        let (reconnect, metrics) = (<_>::default(), ProducerMetrics::new());
        let shared = SharedProducer { client, producer, reconnect, log_limit, metrics };
        Ok(Self { shared: Arc::new(shared), budget, attempt_timeout })
    }

    /// Publishes a message, and waits until the brokers have acknowledged it. A refused message is
    /// retried within the budget, unless it is too large or its timestamp is not accepted: a retry would
    /// change neither.
    ///
    /// After an error, the message is no longer in flight. It may have been published nevertheless if no
    /// response arrived.
    ///
    /// # Cancellation
    /// Dropping the future stops the retries; a message that was sent may still be published.
    pub(crate) async fn publish(&self, message: &Output) -> Result<(), PublishError> {
        let start = Instant::now();
        let result = self.publish_within_budget(message, start).await;
        self.shared.metrics.record(&result, start.elapsed());
        result
    }

    async fn publish_within_budget(
        &self,
        message: &Output,
        start: Instant,
    ) -> Result<(), PublishError> {
        let mut attempts = 0_u32;
        loop {
            let current = self.shared.producer().clone();
            let producer = current.producer();
            let sent = match send(producer, message) {
                // The sender is dropped unused only together with the producer.
                Ok(ack) => ack.await.unwrap_or(Err(KafkaError::Canceled)),
                Err(error) => Err(error),
            };
            let error = match sent {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let reason = producer.context().take_reason();
            let refused = PublishError::of(&error, reason, &message.topic);
            if let Some((code, reason)) = producer.client().fatal_error() {
                self.shared.replace(&current, &format!("{code}: {reason}"));
            }
            let brokers = self.shared.client.brokers();
            self.shared.reconnect.check(producer.client(), brokers);
            let PublishError::Otherwise(text) = &refused else {
                return Err(refused);
            };
            attempts += 1;
            let delay = server_backoff().delay(attempts);
            if start.elapsed() + delay + self.attempt_timeout > self.budget {
                return Err(refused);
            }
            let topic = &*message.topic;
            if attempts == 1
                && let Some(suppressed) = self.shared.log_limit.allow(topic)
            {
                tracing::warn!(
                    topic,
                    error = text,
                    suppressed,
                    "failed to publish a message; retrying"
                );
            }
            sleep(delay).await;
        }
    }
}

impl SharedProducer {
    fn producer(&self) -> MutexGuard<'_, Arc<DropOnThread>> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces a producer that has failed permanently. An idempotent producer fails when it cannot know
    /// which of its messages are stored, for example after a loss of data.
    fn replace(&self, failed: &Arc<DropOnThread>, reason: &str) {
        let mut producer = self.producer();
        if Arc::ptr_eq(&producer, failed) {
            tracing::warn!(error = reason, "the producer has failed; replacing it");
            match DropOnThread::new(&self.client, &self.log_limit) {
                Ok(new) => *producer = Arc::new(new),
                Err(error) => tracing::error!(%error, "failed to replace the producer"),
            }
        }
    }
}

/// Sends a message once. Returns the receiver of the acknowledgement.
fn send(
    producer: &ThreadedProducer<Acknowledgements>,
    message: &Output,
) -> KafkaResult<oneshot::Receiver<KafkaResult<()>>> {
    let (sender, ack) = oneshot::channel();
    let sent = producer.send(record(message, Box::new(sender)));
    sent.map(|()| ack).map_err(|(error, _)| error)
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("bootstrap.servers", &self.shared.client.get("bootstrap.servers"))
            .field("timeout", &self.budget)
            .finish_non_exhaustive()
    }
}

/// A producer that is dropped on a separate thread, because the drop joins the producer's threads.
struct DropOnThread(Option<ThreadedProducer<Acknowledgements>>);

impl DropOnThread {
    fn new(client: &ClientSettings, log_limit: &LogLimit) -> Result<Self, ConfigError> {
        let context = Acknowledgements::new(client.tokens.clone(), log_limit.clone());
        let producer = ThreadedProducer::from_config_and_context(client, context);
        Ok(Self(Some(producer.map_err(config_error)?)))
    }

    fn producer(&self) -> &ThreadedProducer<Acknowledgements> {
        self.0.as_ref().expect("the producer is taken only on drop")
    }
}

impl Drop for DropOnThread {
    fn drop(&mut self) {
        let producer = self.0.take();
        // If no thread can be spawned, the producer is dropped here, with the closure.
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
    use crate::{ConsumerConfig, OauthToken};

    const BUDGET: Duration = Duration::from_secs(2);

    fn message() -> Output {
        Output::to("dead")
    }

    #[tokio::test]
    async fn unreachable_brokers_error_includes_the_connection_error() {
        let mut consumer = ClientSettings::default();
        consumer.set("bootstrap.servers", "127.0.0.1:1");
        let publisher =
            Publisher::with_consumer_config(&consumer, &PublishSettings::new(BUDGET)).unwrap();
        let refused = publisher.publish(&message()).await.unwrap_err().to_string();
        let (_, met) =
            refused.split_once("Message timed out): ").unwrap_or_else(|| panic!("{refused}"));
        // Either may be the last error of the connection.
        assert!(met.contains("127.0.0.1:1") || met.contains("brokers are down"), "{refused}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn acknowledgement_clears_earlier_connection_errors() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("dead", 1).unwrap();
        let config = kafka.consumer_config("g").into();
        let settings = PublishSettings::new(BUDGET * 10);
        let publisher = Publisher::with_consumer_config(&config, &settings).unwrap();
        let producer = publisher.shared.producer().clone();
        let context = producer.producer().context();
        context.error(KafkaError::Canceled, "an earlier error");
        publisher.publish(&message()).await.unwrap();
        assert_eq!(context.take_reason(), None);
    }

    #[test]
    fn producer_authenticates_with_the_token_of_the_consumer() {
        let config = ConsumerConfig::new("127.0.0.1:1", "g").with_oauth_token(|| {
            Ok(OauthToken::new("a", campanile_driver::private::now() + Duration::from_secs(3600)))
        });
        let checked = config.clone().checked().unwrap().client;
        let settings = PublishSettings::new(BUDGET);
        for publisher in [
            Publisher::new(config).unwrap(),
            Publisher::with_consumer_config(&checked, &settings).unwrap(),
        ] {
            let producer = publisher.shared.producer().clone();
            let token = producer.producer().context().generate_oauth_token(None).unwrap();
            assert_eq!(token.token, "a");
        }
        let without = Publisher::new("127.0.0.1:1").unwrap();
        let producer = without.shared.producer().clone();
        let error = producer.producer().context().generate_oauth_token(None).err().unwrap();
        assert!(error.to_string().contains("with_oauth_token"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn producer_with_fatal_error_is_replaced() {
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
        let next = publisher.shared.producer().clone();
        assert!(!Arc::ptr_eq(&first, &next));
        let allowed = [first, next].map(|of| of.producer().context().log_limit.allow("failed"));
        assert_eq!(allowed, [Some(0), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn producer_that_knows_no_brokers_is_reconnected() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("dead", 1).unwrap();
        let publisher = Publisher::new(kafka.bootstrap()).unwrap();
        // A producer that cannot find the brokers by itself.
        let mut nowhere = ClientSettings::default();
        nowhere.set("bootstrap.servers", "127.0.0.1:1").set("message.timeout.ms", "1000");
        let producer = Arc::new(DropOnThread::new(&nowhere, &LogLimit::default()).unwrap());
        *publisher.shared.producer() = producer.clone();
        let SharedProducer { client, reconnect, .. } = &*publisher.shared;
        reconnect.check(producer.producer().client(), client.brokers());
        tokio::time::advance(Duration::from_secs(10)).await;
        publisher.publish(&message()).await.unwrap();
    }
}
