use campanile_programs::kafka;

use super::secured::Secured;
use super::server;
use super::server::{Cluster, KafkaServer, Ports};
use crate::{ServerError, free_port, port, program};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const INSTALL_JAVA: &str = "install it with `apt-get install default-jre-headless`, or `cargo xtask \
    install` in Campanile's checkout";

const INSTALL_LIBS: &str = "fetch them with `cargo xtask install` in Campanile's checkout, or set \
    CAMPANILE_KAFKA_LIBS to the folder `libs` of a Kafka distribution";

/// Settings of a test's single node, besides its ports and its folder: Kafka's internal topics have
/// one replica, and nothing waits.
const DEFAULT_PROPERTIES: &[(&str, &str)] = &[
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
    // Allows consumers to choose a session timeout below 6 s.
    ("group.min.session.timeout.ms", "1000"),
    // With the newer consumer protocol, a joining member waits for a heartbeat interval set by the
    // broker.
    ("group.consumer.heartbeat.interval.ms", "100"),
    ("group.consumer.min.heartbeat.interval.ms", "100"),
    ("group.consumer.min.session.timeout.ms", "1000"),
    // A node that restarts after a kill waits until its previous session has expired.
    ("broker.session.timeout.ms", "1500"),
    ("broker.heartbeat.interval.ms", "300"),
    ("controller.quorum.election.timeout.ms", "200"),
];

/// The node that is the controller of its cluster.
const CONTROLLER_ID: u16 = 1;

/// What a process of Kafka is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    BrokerAndController,
    Broker,
    Controller,
}

/// Builder for a [`KafkaServer`]; see [`KafkaServer::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct KafkaServerBuilder {
    port: Option<u16>,
    cluster: Option<Cluster>,
    separate_controller: bool,
    secured: Option<Secured>,
    properties: BTreeMap<String, String>,
}

impl KafkaServerBuilder {
    /// Sets the clients' port on 127.0.0.1. Default: a free port, and another one if that port is
    /// taken before the server starts. A port set here must be free.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Makes the server another broker of this server's cluster, without a controller of its own.
    /// Default: a cluster of its own.
    pub fn join(mut self, server: &KafkaServer) -> Self {
        self.cluster = Some(server.cluster().clone());
        self
    }

    /// Starts the controller in a process of its own, which [`KafkaServer::kill`] does not kill and
    /// [`KafkaServer::pause`] does not suspend, as in production. Default: one process is both, which starts
    /// sooner.
    ///
    /// Without it, a restarted broker is a leader at first, as when it was killed, and then registers and is
    /// elected again. Kafka (4.3.1) may lose groups if it still reads them when that happens.
    pub fn separate_controller(mut self) -> Self {
        self.separate_controller = true;
        self
    }

    /// Adds a second address ([`KafkaServer::secured_bootstrap`]), at which clients need TLS and the
    /// password of one of these users, by `PLAIN` or `SCRAM-SHA-512`. A user may do nothing until
    /// [`KafkaServer::allow`]; clients at the other address may do everything. The certificate and its
    /// private key are PEM; see [`Authority`](crate::Authority). Default: no such address, and
    /// everybody may do everything.
    ///
    /// # Panics
    ///
    /// Panics if a name or a password has other characters than letters and digits.
    pub fn secured(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
        users: &[(&str, &str)],
    ) -> Self {
        self.secured = Some(Secured::new(certificate.into(), key.into(), users));
        self
    }

    /// Sets a line of `server.properties`, such as `("auto.create.topics.enable", "true")`. Takes
    /// precedence over the test kit's own settings.
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Starts the server and waits until it answers, which takes a few seconds.
    ///
    /// # Errors
    ///
    /// Fails with [`ServerError::Missing`] if `java` or Kafka's jars are not installed, and
    /// otherwise with the reason why the server did not start and the end of its log.
    pub fn start(self) -> Result<KafkaServer, ServerError> {
        let java = program::require("java", INSTALL_JAVA)?;
        let libs = kafka::folder();
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

    /// The role of the server's process.
    pub(super) fn role(&self) -> Role {
        match self.cluster.is_some() || self.separate_controller {
            true => Role::Broker,
            false => Role::BrokerAndController,
        }
    }

    /// Checks whether the server has a controller of its own, in another process.
    pub(super) fn has_separate_controller(&self) -> bool {
        self.cluster.is_none() && self.separate_controller
    }

    /// The cluster that the server at this port belongs to.
    pub(super) fn cluster(&self, port: u16) -> Result<Cluster, ServerError> {
        match &self.cluster {
            Some(cluster) => Ok(cluster.clone()),
            None => Ok(Cluster::new(port, free_port()?)),
        }
    }

    /// The settings of the second address.
    pub(super) fn secured_listener(&self) -> Option<&Secured> {
        self.secured.as_ref()
    }

    /// Formats `server.properties` of a process with this role.
    pub(super) fn render_properties(
        &self,
        role: Role,
        ports: &Ports,
        cluster: &Cluster,
        data: &Path,
    ) -> String {
        let controller = cluster.controller();
        let mut broker = format!("PLAINTEXT://127.0.0.1:{}", ports.plain);
        if let Some(port) = ports.secured {
            write!(broker, ",SASL_SSL://127.0.0.1:{port}").expect("a string takes every line");
        }
        let controller_listener = format!("CONTROLLER://{controller}");
        let (node_id, roles, listeners) = match role {
            // A port is as unique as a node's id has to be.
            Role::Broker => (ports.plain, "broker", broker.clone()),
            Role::Controller => (CONTROLLER_ID, "controller", controller_listener),
            Role::BrokerAndController => {
                let listeners = format!("{broker},{controller_listener}");
                (CONTROLLER_ID, "broker,controller", listeners)
            }
        };
        let mut properties: BTreeMap<String, String> = DEFAULT_PROPERTIES
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for (name, value) in [
            ("process.roles", roles.to_owned()),
            ("node.id", node_id.to_string()),
            ("controller.quorum.voters", format!("{CONTROLLER_ID}@{controller}")),
            ("listeners", listeners),
            ("log.dirs", data.display().to_string()),
        ] {
            properties.insert(name.to_owned(), value);
        }
        if role != Role::Controller {
            properties.insert("advertised.listeners".to_owned(), broker);
        }
        properties.extend(self.secured.iter().flat_map(Secured::properties));
        properties.extend(self.properties.clone());
        let line = |(name, value): (&String, &String)| format!("{name}={value}\n");
        properties.iter().map(line).collect()
    }
}
