use super::message::Message;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, client::Client};
use std::fmt;
use std::sync::mpsc;

/// Maximum number of messages in flight: fewer than librdkafka's queue holds, so that the queue is
/// never full.
const MAX_IN_FLIGHT: usize = 10_000;

/// The position of a message in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivered {
    /// The partition.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
}

/// Produces messages to [`KafkaServer`](crate::KafkaServer) and [`MockKafka`](crate::MockKafka).
///
/// Blocks until the brokers have acknowledged, and needs no async runtime.
pub struct Producer {
    inner: ThreadedProducer<DeliveryContext>,
}

impl Producer {
    /// Creates a producer for these brokers, given as `host:port` separated by commas.
    ///
    /// # Errors
    ///
    /// Fails if librdkafka rejects the address.
    pub fn new(bootstrap: &str) -> Result<Self, KafkaError> {
        Self::from_config(ClientConfig::new().set("bootstrap.servers", bootstrap))
    }

    /// Produces one message and waits until the brokers have acknowledged it.
    ///
    /// # Errors
    ///
    /// Fails if the message is not acknowledged within two minutes, or cannot be acknowledged.
    pub fn produce(&self, message: Message) -> Result<Delivered, KafkaError> {
        let delivered = self.produce_all([message])?;
        Ok(delivered[0])
    }

    /// Produces many messages, in order within each partition, and waits until the brokers have
    /// acknowledged all of them. The results are in the order of `messages`.
    ///
    /// # Errors
    ///
    /// Fails with the error of the first message that failed. Other messages may have been delivered.
    pub fn produce_all(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Delivered>, KafkaError> {
        let mut messages = messages.into_iter();
        let mut delivered = Vec::new();
        loop {
            let (sender, deliveries) = mpsc::channel();
            let mut sent = 0;
            for message in messages.by_ref().take(MAX_IN_FLIGHT) {
                self.send(&message, delivered.len() + sent, sender.clone())?;
                sent += 1;
            }
            if sent == 0 {
                return Ok(delivered);
            }
            drop(sender);
            let mut chunk: Vec<_> = deliveries.iter().collect();
            chunk.sort_by_key(|(index, _)| *index);
            for (_, result) in chunk {
                delivered.push(result?);
            }
        }
    }

    pub(super) fn from_config(config: &mut ClientConfig) -> Result<Self, KafkaError> {
        config
            .set("enable.idempotence", "true")
            .set("linger.ms", "0")
            .set("message.timeout.ms", "120000")
            .set("topic.metadata.propagation.max.ms", "1000")
            // A client should reconnect to a restarted broker at once.
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "200");
        Ok(Self { inner: config.create_with_context(DeliveryContext)? })
    }

    pub(super) fn client(&self) -> &Client<impl ClientContext + use<>> {
        self.inner.client()
    }

    fn send(
        &self,
        message: &Message,
        index: usize,
        sender: mpsc::Sender<DeliveryReport>,
    ) -> Result<(), KafkaError> {
        let mut record = BaseRecord::<[u8], [u8], _>::with_opaque_to(
            &message.topic,
            Box::new(PendingDelivery { index, sender }),
        );
        record.partition = message.partition;
        record.key = message.key.as_deref();
        record.payload = message.payload.as_deref();
        record.headers = message.headers.clone();
        record.timestamp = message.timestamp;
        self.inner.send(record).map_err(|(error, _)| error)
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

/// The index of a message among those sent together, and its delivery result.
type DeliveryReport = (usize, Result<Delivered, KafkaError>);

/// The data that librdkafka keeps for a message until it reports the delivery.
struct PendingDelivery {
    index: usize,
    sender: mpsc::Sender<DeliveryReport>,
}

/// Forwards delivery reports to the waiting caller.
struct DeliveryContext;

impl ClientContext for DeliveryContext {}

impl ProducerContext for DeliveryContext {
    type DeliveryOpaque = Box<PendingDelivery>;

    fn delivery(&self, result: &DeliveryResult<'_>, pending: Box<PendingDelivery>) {
        let result = match result {
            Ok(message) => {
                Ok(Delivered { partition: message.partition(), offset: message.offset() })
            }
            Err((error, _)) => Err(error.clone()),
        };
        // The caller no longer waits if an earlier message could not even be enqueued.
        let _ = pending.sender.send((pending.index, result));
    }
}
