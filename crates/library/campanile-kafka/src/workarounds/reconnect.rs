//! Reconnects a client that has forgotten the addresses of all brokers.
//!
//! When all brokers are fenced at the same moment, a broker may answer that the cluster has no brokers.
//! librdkafka then forgets all of them, and should start again from the bootstrap servers. In librdkafka
//! 2.12, the same answer can cancel that, for good:
//! <https://github.com/confluentinc/librdkafka/issues/5301>.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::client::{Client, ClientContext};
use tokio::time::Instant;

use crate::native;

/// How long librdkafka has to start again by itself. It does so at once.
const DELAY: Duration = Duration::from_secs(10);

/// The interval between attempts. librdkafka keeps a copy of the addresses of each attempt.
const INTERVAL: Duration = Duration::from_secs(60);

/// Adds the bootstrap servers to a client that knows no broker of its cluster.
#[derive(Default)]
pub(crate) struct Reconnect {
    /// When to add them. `None` if brokers were known at the last check.
    next: Mutex<Option<Instant>>,
}

impl Reconnect {
    /// Checks whether the client knows brokers. Must be called again and again while it may not.
    ///
    /// An ordinary outage is left to librdkafka, which still knows the brokers and connects to them.
    pub(crate) fn check<C: ClientContext>(&self, client: &Client<C>, bootstrap: Option<&str>) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if !native::broker_ids(client).is_empty() {
            *next = None;
            return;
        }
        let now = Instant::now();
        if now < *next.get_or_insert(now + DELAY) {
            return;
        }
        *next = Some(now + INTERVAL);
        if let Some(brokers) = bootstrap {
            tracing::warn!(
                brokers,
                "no broker of the cluster is known; connecting to the bootstrap servers"
            );
            native::add_brokers(client, brokers);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use campanile_driver::source::Source as _;
    use campanile_test::{MockKafka, eventually};
    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
    use rdkafka::metadata::Metadata;

    use super::*;
    use crate::client::ClientSettings;
    use crate::source::KafkaSource;
    use crate::source::tests::settings;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The topic that the broker has. librdkafka reserves memory by the size of a response, which is not
    /// enough for a response as small as with a short name.
    const TOPIC: &str = "a-topic-with-a-name-of-about-a-hundred-characters-so-that-it-is-longer-than-\
                         all-other-fields-together";

    /// A broker that answers only requests for metadata (version 0). Its threads end with the test.
    struct FakeBroker {
        addr: SocketAddr,
        state: Arc<BrokerState>,
    }

    #[derive(Default)]
    struct BrokerState {
        /// Whether the broker is fenced, so that the cluster has no broker.
        is_fenced: AtomicBool,
        connections: AtomicUsize,
    }

    impl FakeBroker {
        fn start() -> io::Result<Self> {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let this = Self { addr: listener.local_addr()?, state: Arc::default() };
            let (addr, state) = (this.addr, this.state.clone());
            thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    let state = state.clone();
                    state.connections.fetch_add(1, Ordering::SeqCst);
                    thread::spawn(move || {
                        // Ends when the client disconnects.
                        let _ = serve(client, addr, &state.is_fenced);
                        state.connections.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
            Ok(this)
        }

        /// Is fenced until the client, which requests metadata again and again, has lost all brokers.
        fn fence_until_lost<C: ClientContext>(&self, client: &Client<C>) {
            self.state.is_fenced.store(true, Ordering::SeqCst);
            let is_lost = || {
                let connections = self.state.connections.load(Ordering::SeqCst);
                (native::broker_ids(client).is_empty() && connections == 0).then_some(())
            };
            eventually(TIMEOUT, is_lost).unwrap();
            self.state.is_fenced.store(false, Ordering::SeqCst);
        }

        /// The settings of a client. Without a recovery strategy, librdkafka never starts again by
        /// itself, as after its bug.
        fn client_settings(&self) -> ClientSettings {
            let mut client = ClientConfig::new();
            client
                .set("bootstrap.servers", self.addr.to_string())
                .set("group.id", "billing")
                .set("api.version.request", "false")
                .set("broker.version.fallback", "0.9.0")
                .set("metadata.recovery.strategy", "none")
                .set("topic.metadata.refresh.interval.ms", "100");
            client.into()
        }
    }

    fn serve(mut client: TcpStream, addr: SocketAddr, is_fenced: &AtomicBool) -> io::Result<()> {
        loop {
            let mut length = [0; 4];
            client.read_exact(&mut length)?;
            let mut request = vec![0; u32::from_be_bytes(length) as usize];
            client.read_exact(&mut request)?;
            let (metadata, correlation_id) = (request[..2] == [0, 3], &request[4..8]);
            if !metadata {
                continue;
            }
            let mut reply = correlation_id.to_vec();
            if is_fenced.load(Ordering::SeqCst) {
                reply.extend(0_u32.to_be_bytes());
            } else {
                reply.extend(1_u32.to_be_bytes());
                reply.extend(7_u32.to_be_bytes());
                extend_with_string(&mut reply, &addr.ip().to_string());
                reply.extend(u32::from(addr.port()).to_be_bytes());
            }
            // One topic, without an error and without partitions.
            reply.extend(1_u32.to_be_bytes());
            reply.extend(0_u16.to_be_bytes());
            extend_with_string(&mut reply, TOPIC);
            reply.extend(0_u32.to_be_bytes());
            client.write_all(&(reply.len() as u32).to_be_bytes())?;
            client.write_all(&reply)?;
        }
    }

    fn extend_with_string(reply: &mut Vec<u8>, text: &str) {
        reply.extend((text.len() as u16).to_be_bytes());
        reply.extend(text.as_bytes());
    }

    fn fetch_metadata<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> Metadata {
        consumer.fetch_metadata(None, TIMEOUT).unwrap()
    }

    #[test]
    fn added_brokers_connect_a_client_that_has_none() {
        let kafka = MockKafka::start(2).unwrap();
        let consumer: BaseConsumer = ClientConfig::new().create().unwrap();
        assert!(native::broker_ids(consumer.client()).is_empty());
        native::add_brokers(consumer.client(), &kafka.bootstrap());
        assert_eq!(fetch_metadata(&consumer).brokers().len(), 2);
        assert!(!native::broker_ids(consumer.client()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn consumer_that_lost_all_brokers_connects_again() {
        let broker = FakeBroker::start().unwrap();
        let mut source = KafkaSource::start(&settings(broker.client_settings(), TOPIC)).unwrap();
        source.tick(&[]);
        broker.fence_until_lost(source.consumer.client());

        source.tick(&[]);
        tokio::time::advance(DELAY / 2).await;
        source.tick(&[]);
        // The client has no address to connect to.
        assert!(source.consumer.fetch_metadata(None, Duration::from_millis(200)).is_err());

        tokio::time::advance(DELAY / 2).await;
        source.tick(&[]);
        assert_eq!(fetch_metadata(&source.consumer).brokers().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_brokers_are_added_once_a_minute() {
        let consumer: BaseConsumer = ClientConfig::new().create().unwrap();
        let reconnect = Reconnect::default();
        let checked_next = async |after| {
            tokio::time::advance(after).await;
            reconnect.check(consumer.client(), Some("127.0.0.1:1"));
            reconnect.next.lock().unwrap().unwrap() - Instant::now()
        };
        assert_eq!(checked_next(Duration::ZERO).await, DELAY);
        assert_eq!(checked_next(DELAY).await, INTERVAL);
        assert_eq!(checked_next(INTERVAL / 2).await, INTERVAL / 2);
        assert_eq!(checked_next(INTERVAL / 2).await, INTERVAL);
    }

    #[test]
    fn client_that_knows_brokers_is_left_alone() {
        let kafka = MockKafka::start(1).unwrap();
        let reconnect = Reconnect { next: Mutex::new(Some(Instant::now())) };
        let consumer: BaseConsumer = kafka.consumer_config("billing").create().unwrap();
        fetch_metadata(&consumer);
        kafka.cluster().broker_down(1).unwrap();
        reconnect.check(consumer.client(), Some("127.0.0.1:1"));
        assert_eq!(*reconnect.next.lock().unwrap(), None);
    }
}
