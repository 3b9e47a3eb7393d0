//! Servers that are shared by the tests.

use std::sync::LazyLock;
use std::time::Duration;

use campanile_admin::StoreConfig;
use campanile_admin::doctor::Deployment;
use campanile_idempotency::IdempotencyConfig;
use campanile_kafka::ConsumerConfig;
use campanile_postgres::PgConfig;
use campanile_redis::RedisConfig;
use campanile_test::{KafkaServer, PgServer, RedisServer, eventually, free_port};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of one metadata request.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// The namespace and the prefix of the topics of a sound deployment.
pub(crate) const NAME: &str = "payments";

const DAYS: &[(&str, &str)] =
    &[("1 d", "86400000"), ("7 d", "604800000"), ("14 d", "1209600000"), ("20 d", "1728000000")];

/// Converts a readable number of days to milliseconds.
pub(crate) fn millis(days: &str) -> &'static str {
    DAYS.iter().find(|(name, _)| *name == days).expect("it is in the list").1
}

/// Three brokers, the third of which also authenticates clients.
pub(crate) struct Cluster {
    pub(crate) first: KafkaServer,
    others: Vec<KafkaServer>,
    /// The address that requires a user and a password.
    pub(crate) sasl: String,
}

pub(crate) static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::start);

/// The user may connect, and nothing else.
pub(crate) const USER: (&str, &str) = ("app", "secret");

impl Cluster {
    fn start() -> Self {
        let builder = || {
            KafkaServer::builder()
                .property("offsets.topic.replication.factor", "3")
                .property(
                    "authorizer.class.name",
                    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                )
                .property("super.users", "User:ANONYMOUS")
                // A busy machine may delay heartbeats.
                .property("broker.session.timeout.ms", "30000")
        };
        let first = builder().start().unwrap();
        let [port, sasl] = [free_port().unwrap(), free_port().unwrap()];
        let listeners = format!("PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}");
        let (user, password) = USER;
        let authenticating = builder()
            .join(&first)
            .port(port)
            .property("listeners", &listeners)
            .property("advertised.listeners", &listeners)
            .property(
                "listener.security.protocol.map",
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            )
            .property("sasl.enabled.mechanisms", "PLAIN")
            .property(
                "listener.name.sasl_plaintext.plain.sasl.jaas.config",
                &format!(
                    "org.apache.kafka.common.security.plain.PlainLoginModule required \
                     user_{user}=\"{password}\";"
                ),
            );
        let plain = builder().join(&first);
        let others = std::thread::scope(|scope| {
            let second = scope.spawn(|| plain.start().unwrap());
            vec![authenticating.start().unwrap(), second.join().unwrap()]
        });
        Self { first, others, sasl: format!("127.0.0.1:{sasl}") }
    }

    /// Creates topics with three replicas, which have two in sync, or with these settings. Waits until
    /// each broker knows them.
    pub(crate) async fn create_topics(&self, topics: &[(&str, &[(&str, &str)])]) {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", self.first.bootstrap()).create().unwrap();
        let mut missing: Vec<_> = topics
            .iter()
            .map(|(name, settings)| {
                let is_set = |name| settings.iter().any(|(set, _)| *set == name);
                let replicas = if is_set("replicas") { 1 } else { 3 };
                let mut topic = NewTopic::new(name, 1, TopicReplication::Fixed(replicas));
                if replicas == 3 && !is_set("min.insync.replicas") {
                    topic = topic.set("min.insync.replicas", "2");
                }
                let own = settings.iter().filter(|(name, _)| *name != "replicas");
                own.fold(topic, |topic, (name, value)| topic.set(name, value))
            })
            .collect();
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
        let create_all = async {
            while !missing.is_empty() {
                let created = admin.create_topics(&missing, &options).await.unwrap();
                // A broker that has missed its heartbeats is fenced for a moment.
                let is_left = |topic: &NewTopic<'_>| {
                    created.iter().any(|result| match result {
                        Err((name, RDKafkaErrorCode::InvalidReplicationFactor)) => {
                            name == topic.name
                        }
                        Err(error) => panic!("{error:?}"),
                        Ok(_) => false,
                    })
                };
                missing.retain(is_left);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, create_all).await.expect("the topics are created");
        for broker in std::iter::once(&self.first).chain(&self.others) {
            let client: AdminClient<DefaultClientContext> =
                ClientConfig::new().set("bootstrap.servers", broker.bootstrap()).create().unwrap();
            for &(name, _) in topics {
                let has_leader = || {
                    let metadata =
                        client.inner().fetch_metadata(Some(name), METADATA_TIMEOUT).ok()?;
                    let mut partitions = metadata.topics().first()?.partitions().iter();
                    partitions.any(|partition| partition.leader() >= 0).then_some(())
                };
                eventually(TIMEOUT, has_leader).expect("each broker knows the topic");
            }
        }
    }
}

/// A Redis with an append-only file that is synced with each write, and with a replica.
pub(crate) struct SafeRedis {
    pub(crate) primary: RedisServer,
    pub(crate) replica: RedisServer,
}

pub(crate) static REDIS: LazyLock<SafeRedis> = LazyLock::new(|| {
    let primary = RedisServer::builder()
        .append_only(true)
        .config("appendfsync", "always")
        .config("min-replicas-to-write", "1")
        .start()
        .unwrap();
    let replica = RedisServer::builder()
        .config("replicaof", &format!("127.0.0.1 {}", primary.port()))
        .start()
        .unwrap();
    let is_online = || primary.cli(&["INFO", "replication"]).unwrap().contains("state=online");
    eventually(TIMEOUT, || is_online().then_some(())).expect("the replica follows");
    SafeRedis { primary, replica }
});

pub(crate) static POSTGRES: LazyLock<PgServer> =
    LazyLock::new(|| PgServer::builder().durable(true).start().unwrap());

/// A database with the schema.
pub(crate) async fn migrated_database() -> String {
    let url = POSTGRES.new_database().unwrap();
    Box::pin(campanile_postgres::migrate(&*url)).await.unwrap();
    url
}

pub(crate) fn redis_config(url: impl Into<String>) -> RedisConfig {
    // Long enough on a busy machine, and not compared with the lock's time to live.
    RedisConfig::new(url).with_connect_timeout(TIMEOUT)
}

pub(crate) fn pg_config(url: impl Into<String>) -> PgConfig {
    PgConfig::new(url).with_connect_timeout(TIMEOUT)
}

pub(crate) fn layer() -> IdempotencyConfig {
    IdempotencyConfig::new(NAME)
}

pub(crate) fn consumer(group: &str) -> ConsumerConfig {
    ConsumerConfig::new(CLUSTER.first.bootstrap(), group)
}

/// A sound deployment, apart from the store.
pub(crate) fn on_store(store: StoreConfig) -> Deployment {
    with(consumer(NAME), layer(), store)
}

pub(crate) fn with(
    consumer: ConsumerConfig,
    layer: IdempotencyConfig,
    store: StoreConfig,
) -> Deployment {
    Deployment::new(consumer, layer, store)
        .subscribe([NAME])
        .with_retry_topic("payments.retry", Duration::from_secs(300))
        .with_dead_letter_topic("payments.dead")
        .with_grace_period(Duration::from_secs(30))
        .with_handler_timeout(Duration::from_secs(10))
}

pub(crate) fn safe_store() -> StoreConfig {
    StoreConfig::Redis(redis_config(REDIS.primary.url()))
}

/// A sound deployment.
pub(crate) fn sound() -> Deployment {
    on_store(safe_store())
}
