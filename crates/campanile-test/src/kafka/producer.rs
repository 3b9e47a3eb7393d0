use super::message::Message;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, client::Client};
use std::fmt;
use std::sync::mpsc;

/// Messages in flight at most: fewer than librdkafka's queue holds, so that it is never full.
const CHUNK: usize = 10_000;

/// Where a message lies in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivered {
    /// Its partition.
    pub partition: i32,
    /// Its offset in the partition.
    pub offset: i64,
}

/// Fills topics, of [`KafkaServer`](crate::KafkaServer) and [`MockKafka`](crate::MockKafka) alike.
///
/// It blocks until the brokers have acknowledged, and asks nothing of a runtime.
pub struct Producer {
    inner: ThreadedProducer<Deliveries>,
}

impl Producer {
    /// A producer for these brokers, `host:port` separated by commas.
    ///
    /// # Errors
    ///
    /// When librdkafka refuses the address.
    pub fn new(bootstrap: &str) -> Result<Self, KafkaError> {
        Self::from_config(ClientConfig::new().set("bootstrap.servers", bootstrap))
    }

    /// Produces one message and waits until the brokers have it.
    ///
    /// # Errors
    ///
    /// When it is not acknowledged within two minutes, or never will be.
    pub fn produce(&self, message: Message) -> Result<Delivered, KafkaError> {
        let delivered = self.produce_all([message])?;
        Ok(delivered[0])
    }

    /// Produces many messages, in order within each partition, and waits until the brokers have them
    /// all. What it gives is in the order of `messages`.
    ///
    /// # Errors
    ///
    /// The first message's error that has one. Others may have been delivered.
    pub fn produce_all(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Delivered>, KafkaError> {
        let mut messages = messages.into_iter();
        let mut delivered = Vec::new();
        loop {
            let (sender, deliveries) = mpsc::channel();
            let mut sent = 0;
            for message in messages.by_ref().take(CHUNK) {
                self.send(&message, delivered.len() + sent, sender.clone())?;
                sent += 1;
            }
            if sent == 0 {
                return Ok(delivered);
            }
            drop(sender);
            let mut chunk: Vec<_> = deliveries.iter().collect();
            chunk.sort_by_key(|(place, _)| *place);
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
            // A broker that is started again should be found at once.
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "200");
        Ok(Self { inner: config.create_with_context(Deliveries)? })
    }

    pub(super) fn client(&self) -> &Client<impl ClientContext + use<>> {
        self.inner.client()
    }

    fn send(
        &self,
        message: &Message,
        place: usize,
        sender: mpsc::Sender<Delivery>,
    ) -> Result<(), KafkaError> {
        let mut record = BaseRecord::<[u8], [u8], _>::with_opaque_to(
            &message.topic,
            Box::new(Pending { place, sender }),
        );
        record.partition = message.partition;
        record.key = message.key.as_deref();
        record.payload = message.payload.as_deref();
        record.headers = message.headers.clone();
        self.inner.send(record).map_err(|(error, _)| error)
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

/// The place of a message among those that were sent together, and what became of it.
type Delivery = (usize, Result<Delivered, KafkaError>);

/// What librdkafka keeps for a message until it reports its delivery.
struct Pending {
    place: usize,
    sender: mpsc::Sender<Delivery>,
}

/// Passes the reports on to who waits for them.
struct Deliveries;

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Pending>;

    fn delivery(&self, result: &DeliveryResult<'_>, pending: Box<Pending>) {
        let result = match result {
            Ok(message) => {
                Ok(Delivered { partition: message.partition(), offset: message.offset() })
            }
            Err((error, _)) => Err(error.clone()),
        };
        // Nobody waits any more if an earlier message could not even be enqueued.
        let _ = pending.sender.send((pending.place, result));
    }
}
