//! The environment of the examples, so that each example shows only its own subject.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use campanile::ConsumerConfig;
use campanile_test::{Message, MockKafka, Producer, create_topic};
use lexopt::{Arg, ValueExt};
use rdkafka::ClientConfig;
use serde::Serialize;
use tokio::sync::watch;

/// The brokers, and Redis if there is one. They are named by `--broker HOST:PORT` and
/// `--redis URL`, or by `CAMPANILE_BROKERS` and `CAMPANILE_REDIS`; without a broker, librdkafka's
/// mock runs in this process.
#[derive(Debug)]
pub struct Environment {
    mock: Option<MockKafka>,
    broker: String,
    /// The URL of Redis, if one was named.
    pub redis: Option<String>,
    /// A new topic with eight partitions and a unique name.
    pub topic: String,
}

impl Environment {
    /// Starts the mock, if it is needed, and creates the topic.
    ///
    /// # Errors
    /// Fails if an argument is unknown or the broker does not answer.
    pub fn from_args() -> Result<Self, Box<dyn Error + Send + Sync>> {
        let Servers { broker, redis } = Servers::from_args()?;
        let topic = format!("example-{:016x}", fastrand::u64(..));
        let (mock, broker) = match broker {
            Some(broker) => {
                create_topic(&broker, &topic, 8, &[])?;
                (None, broker)
            }
            None => {
                let mock = MockKafka::start(1)?;
                mock.create_topic(&topic, 8)?;
                let broker = mock.bootstrap();
                (Some(mock), broker)
            }
        };
        Ok(Self { mock, broker, redis, topic })
    }

    /// Sends these bodies as JSON, each with its Kafka record key, and waits until the broker has
    /// acknowledged them.
    ///
    /// # Errors
    /// Fails if the broker rejects a message.
    pub fn produce<T: Serialize>(
        &self,
        bodies: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> &str,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut messages = Vec::new();
        for body in bodies {
            let message = Message::to(&*self.topic).key(key(&body));
            messages.push(message.payload(serde_json::to_vec(&body)?));
        }
        self.send(messages)
    }

    /// Sends these messages, and waits until the broker has acknowledged them.
    ///
    /// # Errors
    /// Fails if the broker rejects a message.
    pub fn send(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        match &self.mock {
            Some(mock) => mock.producer().produce_all(messages)?,
            None => Producer::new(&self.broker)?.produce_all(messages)?,
        };
        Ok(())
    }

    /// The settings of a consumer of this group, which starts at the first record.
    pub fn consumer(&self, group: &str) -> ConsumerConfig {
        self.client(group).into()
    }

    /// The same settings for a client of rdkafka.
    pub fn client(&self, group: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.broker)
            .set("group.id", group)
            .set("auto.offset.reset", "earliest");
        if self.mock.is_some() {
            // The mock reacts quickly, so these timeouts can be shorter than a real broker's.
            config.set("session.timeout.ms", "1500").set("heartbeat.interval.ms", "100");
        }
        config
    }
}

/// The servers named by the arguments or the environment.
#[derive(Debug)]
struct Servers {
    broker: Option<String>,
    redis: Option<String>,
}

impl Servers {
    fn from_args() -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut broker = std::env::var("CAMPANILE_BROKERS").ok();
        let mut redis = std::env::var("CAMPANILE_REDIS").ok();
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Arg::Long("broker") => broker = Some(args.value()?.string()?),
                Arg::Long("redis") => redis = Some(args.value()?.string()?),
                arg => {
                    let usage = "usage: [--broker HOST:PORT] [--redis URL]";
                    return Err(format!("{}\n{usage}", arg.unexpected()).into());
                }
            }
        }
        Ok(Self { broker, redis })
    }
}

/// Checks the arguments of an example that takes none.
///
/// # Errors
/// Fails if there are arguments.
pub fn no_args() -> Result<(), Box<dyn Error + Send + Sync>> {
    match lexopt::Parser::from_env().next()? {
        Some(arg) => Err(arg.unexpected().into()),
        None => Ok(()),
    }
}

/// A log to which an example's handler appends events. Clones share the events.
pub struct EventLog<E>(Arc<watch::Sender<Vec<E>>>);

impl<E> EventLog<E> {
    /// Appends an event.
    pub fn push(&self, event: E) {
        self.0.send_modify(|events| events.push(event));
    }

    /// Completes when there are at least `count` events that match `which`.
    pub fn wait_for<F: Fn(&E) -> bool>(
        &self,
        count: usize,
        which: F,
    ) -> impl Future<Output = ()> + use<E, F> {
        let mut events = self.0.subscribe();
        async move {
            // Fails only if the log was dropped; then no event will be appended.
            let _ = events
                .wait_for(|events| events.iter().filter(|event| which(event)).count() >= count)
                .await;
        }
    }

    /// Takes all events out of the log.
    pub fn take(&self) -> Vec<E> {
        self.0.send_replace(Vec::new())
    }
}

impl<E> Default for EventLog<E> {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }
}

impl<E> Clone for EventLog<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> fmt::Debug for EventLog<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog").field("events", &self.0.borrow().len()).finish()
    }
}
