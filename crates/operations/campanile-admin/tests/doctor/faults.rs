//! The planted faults.

use std::time::Duration;

use campanile_admin::StoreConfig;
use campanile_admin::doctor::{Deployment, FindingKind as Kind, Severity};
use campanile_kafka::ConsumerConfig;
use campanile_postgres::migrate;
use campanile_redis::RedisConfig;
use campanile_test::{Message, PgServer, RedisServer, RedisServerBuilder, eventually, free_port};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::servers::{
    CLUSTER, NAME, POSTGRES, REDIS, TIMEOUT, USER, consumer, layer, migrated_database, millis,
    on_store, pg_config, redis_config, safe_store, sound, with,
};

/// A sound deployment with one fault.
pub(crate) struct Fault {
    pub(crate) what: &'static str,
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    pub(crate) deployment: Deployment,
    /// What the fault needs as long as it is examined.
    _guard: Option<Box<dyn Send>>,
}

impl Fault {
    fn new(what: &'static str, kind: Kind, severity: Severity, deployment: Deployment) -> Self {
        Self { what, kind, severity, deployment, _guard: None }
    }

    fn keep(mut self, guard: impl Send + 'static) -> Self {
        self._guard = Some(Box::new(guard));
        self
    }
}

use Severity::{Advice, DataLoss, Failure};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) async fn plant() -> Vec<Fault> {
    let mut faults = in_topics().await;
    faults.extend(in_the_group().await);
    faults.extend(in_the_connection());
    faults.extend(in_redis());
    faults.extend(in_postgres().await);
    faults.extend(in_settings().await);
    faults
}

/// A sound deployment with other topics.
fn topics(source: &str, retry: &str, dead: &str) -> Deployment {
    topics_of(consumer(NAME), source, retry, dead)
}

fn topics_of(consumer: ConsumerConfig, source: &str, retry: &str, dead: &str) -> Deployment {
    Deployment::new(consumer, layer(), safe_store())
        .subscribe([source])
        .with_retry_topic(retry, 300 * SECOND)
        .with_dead_letter_topic(dead)
}

const RETRY: &str = "payments.retry";
const DEAD: &str = "payments.dead";

async fn in_topics() -> Vec<Fault> {
    let dead_retention = ("retention.ms", millis("14 d"));
    CLUSTER
        .create_topics(&[
            ("one-replica", &[("replicas", "1")]),
            ("one-in-sync", &[("min.insync.replicas", "1")]),
            ("unclean", &[("unclean.leader.election.enable", "true")]),
            ("kept-14-d", &[("retention.ms", millis("14 d"))]),
            ("compacted", &[("cleanup.policy", "compact")]),
            ("dead-compacted", &[("cleanup.policy", "compact,delete"), dead_retention]),
            ("dead-kept-1-d", &[("retention.ms", millis("1 d"))]),
            ("dead-small", &[("max.message.bytes", "1000"), dead_retention]),
            ("retry-compacted", &[("cleanup.policy", "compact,delete")]),
            ("retry-kept-1-d", &[("retention.ms", millis("1 d"))]),
        ])
        .await;
    let long = || layer().with_retention(30 * DAY).with_attempt_retention(30 * DAY);
    // Records are kept for longer than letters in some, which is no fault: each lives from its publication.
    vec![
        Fault::new(
            "topic missing",
            Kind::TopicMissing,
            Failure,
            topics("no-such-topic", RETRY, DEAD),
        ),
        Fault::new(
            "dead-letter topic missing",
            Kind::TopicMissing,
            Failure,
            topics(NAME, RETRY, "no-such-topic.dead"),
        ),
        Fault::new(
            "retry topic missing",
            Kind::TopicMissing,
            Failure,
            topics(NAME, "no-such-topic.retry", DEAD),
        ),
        Fault::new(
            "one replica",
            Kind::ReplicationFactor,
            DataLoss,
            topics("one-replica", RETRY, DEAD),
        ),
        Fault::new(
            "one replica in sync suffices",
            Kind::MinInsyncReplicas,
            DataLoss,
            topics("one-in-sync", RETRY, DEAD),
        ),
        Fault::new(
            "unclean leader election",
            Kind::UncleanLeaderElection,
            DataLoss,
            topics("unclean", RETRY, DEAD),
        ),
        Fault::new(
            "records kept for longer than entries",
            Kind::Retention,
            DataLoss,
            Deployment::new(consumer(NAME), layer(), safe_store())
                .subscribe(["kept-14-d"])
                .with_dead_letter_topic(DEAD),
        ),
        Fault::new(
            "compacted source",
            Kind::Retention,
            DataLoss,
            Deployment::new(consumer(NAME), layer(), safe_store())
                .subscribe(["compacted"])
                .with_dead_letter_topic(DEAD),
        ),
        Fault::new(
            "compacted dead letters",
            Kind::Compacted,
            DataLoss,
            topics(NAME, RETRY, "dead-compacted"),
        ),
        Fault::new(
            "dead letters kept for a day",
            Kind::ShortRetention,
            DataLoss,
            topics(NAME, RETRY, "dead-kept-1-d"),
        ),
        Fault::new(
            "small dead letters",
            Kind::MessageSize,
            DataLoss,
            topics(NAME, RETRY, "dead-small"),
        ),
        Fault::new(
            "compacted retry topic",
            Kind::Compacted,
            DataLoss,
            topics(NAME, "retry-compacted", DEAD),
        ),
        Fault::new(
            "retry topic kept for a day",
            Kind::ShortRetention,
            DataLoss,
            topics(NAME, "retry-kept-1-d", DEAD),
        ),
        Fault::new(
            "attempts count for less than records are kept",
            Kind::AttemptRetention,
            Advice,
            Deployment::new(consumer(NAME), layer().with_retention(30 * DAY), safe_store())
                .subscribe(["kept-14-d"])
                .with_dead_letter_topic(DEAD),
        ),
        Fault::new(
            "given up for less than records are kept",
            Kind::FailedRetention,
            Advice,
            Deployment::new(consumer(NAME), long().with_failed_retention(DAY), safe_store())
                .subscribe(["kept-14-d"])
                .with_dead_letter_topic(DEAD),
        ),
    ]
}

async fn in_the_group() -> Vec<Fault> {
    let topics = ["unread", "created-anew", "ranged", "held-up"];
    CLUSTER.create_topics(&topics.map(|topic| (topic, &[][..]))).await;
    CLUSTER.first.producer().produce(Message::to("unread").payload("1")).unwrap();
    commit("without-consumer", "unread", 0);
    commit("ahead", "created-anew", 1000);
    let member = join("ranged");
    commit("behind-transaction", "held-up", 0);
    let transaction = open_transaction("held-up");
    vec![
        Fault::new(
            "unprocessed records without a consumer",
            Kind::NoProgress,
            Failure,
            topics_of(consumer("without-consumer"), "unread", RETRY, DEAD)
                .with_observation(Duration::from_millis(1)),
        ),
        Fault::new(
            "unprocessed records behind an open transaction",
            Kind::NoProgress,
            Failure,
            topics_of(consumer("behind-transaction"), "held-up", RETRY, DEAD)
                .with_observation(Duration::from_millis(1)),
        )
        .keep(transaction),
        Fault::new(
            "offset beyond the end",
            Kind::OffsetOutOfRange,
            DataLoss,
            topics_of(consumer("ahead"), "created-anew", RETRY, DEAD),
        ),
        Fault::new(
            "member with another assignor",
            Kind::GroupProtocol,
            Failure,
            topics_of(consumer("ranged"), "ranged", RETRY, DEAD),
        )
        .keep(member),
        Fault::new(
            "latest",
            Kind::AutoOffsetReset,
            DataLoss,
            with(consumer(NAME).set("auto.offset.reset", "latest"), layer(), safe_store()),
        ),
    ]
}

pub(crate) fn commit(group: &str, topic: &str, offset: i64) {
    let consumer: BaseConsumer = CLUSTER.first.consumer_config(group).create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(topic, 0, Offset::Offset(offset)).unwrap();
    // The group's coordinator may still be starting.
    let commit = || consumer.commit(&offsets, CommitMode::Sync).ok();
    eventually(TIMEOUT, commit).expect("committed");
}

/// Produces a record in a transaction that stays open.
pub(crate) fn open_transaction(topic: &str) -> BaseProducer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", CLUSTER.first.bootstrap()).set("transactional.id", topic);
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer.begin_transaction().unwrap();
    let record = BaseRecord::<(), str>::to(topic).payload("1");
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(TIMEOUT).unwrap();
    producer
}

/// Joins a group of this topic's name with an eager assignor.
fn join(topic: &str) -> BaseConsumer {
    let mut config = CLUSTER.first.consumer_config(topic);
    config.set("partition.assignment.strategy", "range").set("session.timeout.ms", "60000");
    let consumer: BaseConsumer = config.create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let is_assigned = || {
        consumer.poll(Duration::from_millis(50));
        (consumer.assignment().unwrap().count() > 0).then_some(())
    };
    eventually(TIMEOUT, is_assigned).expect("the member has an assignment");
    consumer
}

fn in_the_connection() -> Vec<Fault> {
    let (user, password) = USER;
    let authenticating = |password| {
        let consumer = ConsumerConfig::new(&*CLUSTER.sasl, NAME)
            .set("security.protocol", "sasl_plaintext")
            .set("sasl.mechanisms", "PLAIN")
            .set("sasl.username", user)
            .set("sasl.password", password);
        Deployment::new(consumer, layer(), safe_store()).subscribe([NAME])
    };
    let nobody = format!("127.0.0.1:{}", free_port().unwrap());
    vec![
        Fault::new(
            "nothing listens",
            Kind::BrokersUnreachable,
            Failure,
            with(ConsumerConfig::new(nobody, NAME), layer(), safe_store()),
        ),
        Fault::new(
            "wrong password in Kafka",
            Kind::KafkaAuthentication,
            Failure,
            authenticating("wrong"),
        ),
        Fault::new(
            "user without permissions",
            Kind::KafkaPermission,
            Failure,
            authenticating(password),
        ),
        Fault::new(
            "automatic commits",
            Kind::InvalidSetting,
            Failure,
            with(consumer(NAME).set("enable.auto.commit", "true"), layer(), safe_store()),
        ),
    ]
}

/// A deployment on a single Redis with an append-only file, which has no replica.
fn on_redis(
    what: &'static str,
    kind: Kind,
    severity: Severity,
    server: RedisServerBuilder,
    change: impl FnOnce(&RedisServer, RedisConfig) -> RedisConfig,
) -> Fault {
    let server = server.start().unwrap();
    let config = change(&server, redis_config(server.url()));
    let mut deployment = on_store(StoreConfig::Redis(config));
    if kind != Kind::RedisReplicas {
        deployment = deployment.accept(Kind::RedisReplicas);
    }
    Fault::new(what, kind, severity, deployment).keep(server)
}

fn in_redis() -> Vec<Fault> {
    let durable = || RedisServer::builder().append_only(true).config("appendfsync", "always");
    let unchanged = |_: &RedisServer, config| config;
    let user = "app on >pw -@all ~{other:* ~campanile:{other} +eval +evalsha +get +mget +set +time \
        +info +config|get";
    vec![
        on_redis(
            "eviction",
            Kind::RedisEviction,
            DataLoss,
            durable().config("maxmemory", "100mb").config("maxmemory-policy", "allkeys-lru"),
            unchanged,
        ),
        on_redis("nearly full", Kind::RedisMemory, Failure, durable(), |server, config| {
            // A server that has just started uses more than this.
            server.cli(&["CONFIG", "SET", "maxmemory", "100kb"]).unwrap();
            config
        }),
        on_redis(
            "nothing on disk",
            Kind::RedisPersistence,
            DataLoss,
            RedisServer::builder().config("save", "\"\""),
            unchanged,
        ),
        on_redis(
            "no fsync",
            Kind::RedisFsync,
            DataLoss,
            durable().config("appendfsync", "no"),
            unchanged,
        ),
        on_redis("no replica", Kind::RedisReplicas, DataLoss, durable(), unchanged),
        Fault::new(
            "Redis is a replica",
            Kind::RedisReplica,
            Failure,
            on_store(StoreConfig::Redis(redis_config(REDIS.replica.url())))
                .accept(Kind::RedisPersistence),
        ),
        on_redis(
            "other number of buckets",
            Kind::RedisBuckets,
            Failure,
            durable(),
            |server, config| {
                server.cli(&["SET", "campanile:{payments}", "16"]).unwrap();
                config.with_buckets(4)
            },
        ),
        on_redis(
            "other namespace",
            Kind::StorePermission,
            Failure,
            durable().config("user", user),
            |server, _| redis_config(format!("redis://app:pw@{}", server.addr())),
        ),
        on_redis(
            "wrong password in Redis",
            Kind::StoreAuthentication,
            Failure,
            durable().password("right"),
            |server, _| redis_config(format!("redis://:wrong@{}", server.addr())),
        ),
        Fault::new(
            "no Redis",
            Kind::StoreUnreachable,
            Failure,
            on_store(StoreConfig::Redis(
                RedisConfig::new(format!("redis://127.0.0.1:{}", free_port().unwrap()))
                    .with_connect_timeout(Duration::from_millis(1)),
            )),
        ),
    ]
}

/// A server with a replica, and a deployment on it as a user that sees no details of replication.
async fn with_standby(what: &'static str, severity: Severity, settings: &[&str]) -> Fault {
    let server = PgServer::builder().durable(true).start().unwrap();
    migrate(pg_config(server.url())).await.unwrap();
    for statement in [
        "CREATE ROLE app LOGIN",
        "GRANT USAGE ON SCHEMA campanile TO app",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app",
    ] {
        server.psql(statement).unwrap();
    }
    let replica = server.replica().unwrap();
    let streams = || {
        let count = server.psql("SELECT count(*) FROM pg_stat_replication").unwrap();
        (count == "1").then_some(())
    };
    eventually(TIMEOUT, streams).expect("the replica follows");
    for statement in settings {
        server.psql(statement).unwrap();
    }
    let url = server.url().replacen("postgres@", "app@", 1);
    let deployment = on_store(StoreConfig::Postgres(pg_config(url)));
    Fault::new(what, Kind::PostgresStandby, severity, deployment).keep((server, replica))
}

async fn in_postgres() -> Vec<Fault> {
    let on_postgres = |url: String| on_store(StoreConfig::Postgres(pg_config(url)));
    POSTGRES.psql("CREATE ROLE stranger LOGIN").unwrap();
    let with_stranger = |url: String| url.replacen("postgres@", "stranger@", 1);
    let altered = async |setting: &str| {
        let url = migrated_database().await;
        let database = url.rsplit('/').next().unwrap();
        POSTGRES.psql(&format!("ALTER DATABASE {database} SET {setting}")).unwrap();
        url
    };
    vec![
        Fault::new(
            "no schema",
            Kind::PostgresSchema,
            Failure,
            on_postgres(POSTGRES.new_database().unwrap()),
        ),
        Fault::new(
            "no grants",
            Kind::StorePermission,
            Failure,
            on_postgres(with_stranger(migrated_database().await)),
        ),
        Fault::new(
            "commits are not durable",
            Kind::PostgresDurability,
            DataLoss,
            on_postgres(altered("synchronous_commit = off").await),
        ),
        with_standby("standbys follow asynchronously", Advice, &[]).await,
        with_standby(
            "commits do not wait for the standby",
            DataLoss,
            &[
                "ALTER SYSTEM SET synchronous_standby_names = '*'",
                "SELECT pg_reload_conf()",
                "ALTER ROLE app SET synchronous_commit = local",
            ],
        )
        .await,
        Fault::new(
            "handler's session is ended",
            Kind::PostgresTimeout,
            Failure,
            on_postgres(altered("idle_in_transaction_session_timeout = '5s'").await).with_inbox(),
        ),
        Fault::new(
            "no sweeping",
            Kind::PostgresSweeping,
            Advice,
            on_store(StoreConfig::Postgres(
                pg_config(migrated_database().await).without_sweeping(),
            )),
        ),
    ]
}

async fn in_settings() -> Vec<Fault> {
    let with_layer = |layer| with(consumer(NAME), layer, safe_store());
    vec![
        Fault::new(
            "invalid namespace",
            Kind::InvalidSetting,
            Failure,
            with_layer("Payments".into()),
        ),
        Fault::new(
            "lock outlives the session",
            Kind::LockOutlivesSession,
            Advice,
            with_layer(layer().with_lock_ttl(120 * SECOND)),
        ),
        Fault::new(
            "handler outlives its lock",
            Kind::MaxHold,
            DataLoss,
            with_layer(layer().with_max_hold(5 * SECOND)),
        ),
        Fault::new(
            "handler outlives the drain",
            Kind::DrainTimeout,
            DataLoss,
            sound().with_handler_timeout(11 * SECOND),
        ),
        Fault::new(
            "grace period",
            Kind::GracePeriod,
            DataLoss,
            sound().with_grace_period(28 * SECOND),
        ),
        Fault::new(
            "backoff outlasts the last retry topic",
            Kind::RetryDelay,
            Advice,
            Deployment::new(consumer(NAME), layer(), safe_store())
                .subscribe([NAME])
                .with_retry_topic(RETRY, 5 * SECOND),
        ),
    ]
}
