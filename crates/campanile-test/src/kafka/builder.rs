use super::server::KafkaServer;
use super::{libs, server};
use crate::{ServerError, free_port, port, program};
use std::collections::BTreeMap;
use std::path::Path;

const INSTALL_JAVA: &str = "install it with `apt-get install default-jre-headless`, or `cargo xtask \
    install` in Campanile's checkout";

const INSTALL_LIBS: &str = "fetch them with `cargo xtask install` in Campanile's checkout, or set \
    CAMPANILE_KAFKA_LIBS to the folder `libs` of a Kafka distribution";

/// What a test's single node is given besides its ports and its folder: topics of Kafka's own with
/// one replica, and no waiting.
const PROPERTIES: &[(&str, &str)] = &[
    ("process.roles", "broker,controller"),
    ("node.id", "1"),
    ("controller.listener.names", "CONTROLLER"),
    ("offsets.topic.replication.factor", "1"),
    ("offsets.topic.num.partitions", "1"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("transaction.state.log.num.partitions", "1"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
    ("auto.create.topics.enable", "false"),
    ("group.initial.rebalance.delay.ms", "0"),
    // Lets a consumer choose a session that is shorter than 6 s.
    ("group.min.session.timeout.ms", "1000"),
    // With the newer consumer protocol a member that joins waits for a heartbeat of the broker's.
    ("group.consumer.heartbeat.interval.ms", "100"),
    ("group.consumer.min.heartbeat.interval.ms", "100"),
    ("group.consumer.min.session.timeout.ms", "1000"),
    // A node that comes back after it was killed waits until its old self is given up.
    ("broker.session.timeout.ms", "1500"),
    ("broker.heartbeat.interval.ms", "300"),
    ("controller.quorum.election.timeout.ms", "200"),
];

/// How a [`KafkaServer`] is started; made by [`KafkaServer::builder`].
#[derive(Clone, Debug, Default)]
pub struct KafkaServerBuilder {
    port: Option<u16>,
    properties: BTreeMap<String, String>,
}

impl KafkaServerBuilder {
    /// The clients' port on 127.0.0.1. Default: a free one, and another one if it is taken in
    /// between; a port of your own that is taken is an error.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A line of `server.properties`, such as `("auto.create.topics.enable", "true")`; it wins over
    /// the test kit's own.
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Starts the server and waits until it answers, which takes some seconds.
    ///
    /// # Errors
    ///
    /// [`ServerError::Missing`] when there is no `java` or no jar, else what kept it from starting,
    /// with the end of its log.
    pub fn start(self) -> Result<KafkaServer, ServerError> {
        let java = program::require("java", INSTALL_JAVA)?;
        let libs = libs::folder();
        if !libs.is_dir() {
            return Err(ServerError::Missing {
                what: format!("the folder {} of Apache Kafka's jars", libs.display()),
                install: INSTALL_LIBS,
            });
        }
        let jvm = server::Jvm { java, libs };
        match self.port {
            Some(port) => KafkaServer::launch(&self, jvm, port),
            None => port::with_free_port(|port| KafkaServer::launch(&self, jvm.clone(), port)),
        }
    }

    /// The text of `server.properties`.
    pub(super) fn text(&self, port: u16, data: &Path) -> Result<String, ServerError> {
        let controller = format!("127.0.0.1:{}", free_port()?);
        let broker = format!("PLAINTEXT://127.0.0.1:{port}");
        let mut properties: BTreeMap<String, String> =
            PROPERTIES.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        for (name, value) in [
            ("controller.quorum.voters", format!("1@{controller}")),
            ("listeners", format!("{broker},CONTROLLER://{controller}")),
            ("advertised.listeners", broker),
            ("log.dirs", data.display().to_string()),
        ] {
            properties.insert(name.to_owned(), value);
        }
        properties.extend(self.properties.clone());
        let line = |(name, value): (&String, &String)| format!("{name}={value}\n");
        Ok(properties.iter().map(line).collect())
    }
}
