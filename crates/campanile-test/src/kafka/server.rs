use super::builder::KafkaServerBuilder;
use super::consumer_config;
use super::producer::Producer;
use super::topic::{create_topic, wait_for_leaders};
use crate::{Process, ServerError};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How long a start may take, on a machine that is busy with other tests.
const START: Duration = Duration::from_secs(90);

/// How long one look at the metadata of a server that is starting may take.
const LOOK: Duration = Duration::from_millis(500);

/// An Apache Kafka of its own, one node that is broker and controller, killed on drop.
///
/// ```no_run
/// use campanile_test::{KafkaServer, Message};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut kafka = KafkaServer::start()?;
/// kafka.create_topic("orders", 6, &[("cleanup.policy", "compact")])?;
/// kafka.producer().produce(Message::to("orders").key("k-1").payload("an order"))?;
/// kafka.kill()?;
/// kafka.restart()?; // the order is still there
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KafkaServer {
    producer: Producer,
    // Before the folder, so that the process is gone when the folder goes.
    process: Process,
    folder: TempDir,
    jvm: Jvm,
    port: u16,
}

impl KafkaServer {
    /// Starts a server without topics on a free port.
    ///
    /// # Errors
    ///
    /// As [`KafkaServerBuilder::start`].
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// A server with settings of its own.
    pub fn builder() -> KafkaServerBuilder {
        KafkaServerBuilder::default()
    }

    /// The broker's address, for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        bootstrap(self.port)
    }

    /// The clients' port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates a topic with the settings `config`, and waits until clients can use it. Blocks the
    /// thread.
    ///
    /// # Errors
    ///
    /// What the broker answers; or no leader for a partition within 30 s.
    pub fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        config: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        create_topic(&self.bootstrap(), name, partitions, config)?;
        wait_for_leaders(self.producer.client(), name, partitions)
    }

    /// What fills the topics. [`restart`](Self::restart) makes a new one.
    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// A consumer's settings: from the first message on, no automatic commits, a session of 3 s and
    /// a heartbeat of 0.1 s. Add to it what the test is about. For `group.protocol=consumer` remove
    /// `session.timeout.ms` and `heartbeat.interval.ms`, which are the broker's then.
    pub fn consumer_config(&self, group: &str) -> ClientConfig {
        consumer_config(&self.bootstrap(), group, "3000")
    }

    /// The file in which the server keeps the first records of a partition.
    pub fn segment(&self, topic: &str, partition: i32) -> PathBuf {
        let partition = format!("{topic}-{partition}");
        self.folder.path().join(DATA).join(partition).join("00000000000000000000.log")
    }

    /// Kills the server as a crash would (SIGKILL).
    ///
    /// # Errors
    ///
    /// When the operating system refuses.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        Ok(())
    }

    /// Starts the server again on the same port with the same topics, offsets and settings, and
    /// waits until it answers. If it still runs, it is killed first.
    ///
    /// # Errors
    ///
    /// As [`KafkaServerBuilder::start`].
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        (self.process, self.producer) = run(&self.jvm, self.folder.path(), self.port)?;
        Ok(())
    }

    /// Makes the server hang (SIGSTOP): connections stay open, new ones are accepted by the kernel,
    /// and nothing is answered.
    ///
    /// # Errors
    ///
    /// When the server does not run.
    pub fn pause(&mut self) -> Result<(), ServerError> {
        Ok(self.process.pause()?)
    }

    /// Lets a paused server go on. It may take itself for dead first, and register anew.
    ///
    /// # Errors
    ///
    /// When the server does not run.
    pub fn resume(&mut self) -> Result<(), ServerError> {
        Ok(self.process.resume()?)
    }

    pub(super) fn launch(
        builder: &KafkaServerBuilder,
        jvm: Jvm,
        port: u16,
    ) -> Result<Self, ServerError> {
        let folder = tempfile::Builder::new().prefix("campanile-kafka-").tempdir()?;
        let text = builder.text(port, &folder.path().join(DATA))?;
        fs::write(folder.path().join(PROPERTIES), text)?;
        jvm.format(folder.path(), port)?;
        let (process, producer) = run(&jvm, folder.path(), port)?;
        Ok(Self { producer, process, folder, jvm, port })
    }
}

/// How Kafka's programs are run.
#[derive(Clone, Debug)]
pub(super) struct Jvm {
    pub(super) java: PathBuf,
    pub(super) libs: PathBuf,
}

impl Jvm {
    /// Prepares the data folder.
    fn format(&self, folder: &Path, port: u16) -> Result<(), ServerError> {
        let mut command = self.command("kafka.tools.StorageTool", folder);
        command.args(["format", "-t", &cluster_id(port), "-c", PROPERTIES]);
        Process::spawn(&command, folder.join("log"))?.until_done(START)
    }

    /// A class of Kafka's, to be run in the server's folder. It takes a small heap and the first
    /// compiler only: a test's server lives for seconds.
    fn command(&self, class: &str, folder: &Path) -> Command {
        let mut command = Command::new(&self.java);
        command
            .args(["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC"])
            .args(["-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN", "-cp"])
            .arg(self.libs.join("*"))
            .arg(class)
            .current_dir(folder);
        command
    }
}

/// The folder of topics in the server's folder.
const DATA: &str = "data";

/// The file of settings in the server's folder.
const PROPERTIES: &str = "server.properties";

/// Starts the server of this folder and waits until it answers.
fn run(jvm: &Jvm, folder: &Path, port: u16) -> Result<(Process, Producer), ServerError> {
    let mut command = jvm.command("kafka.Kafka", folder);
    command.arg(PROPERTIES);
    let mut process = Process::spawn(&command, folder.join("log"))?;
    let producer = Producer::new(&bootstrap(port))?;
    process.until_ready(port, START, || {
        let client = producer.client();
        // Somebody else's server may have the port while ours is about to find that out.
        let ours = client.fetch_cluster_id(LOOK) == Some(cluster_id(port));
        ours && client
            .fetch_metadata(None, LOOK)
            .is_ok_and(|metadata| !metadata.brokers().is_empty())
    })?;
    Ok((process, producer))
}

fn bootstrap(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// 22 characters are an id of Kafka's (16 bytes in base64, whence the A at the end). No other server
/// of a test kit has this one.
fn cluster_id(port: u16) -> String {
    format!("{:0>10}{port:0>11}A", std::process::id())
}
