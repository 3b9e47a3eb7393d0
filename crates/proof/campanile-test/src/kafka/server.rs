use super::acl::Acl;
use super::builder::{KafkaServerBuilder, Role};
use super::consumer_config;
use super::producer::Producer;
use super::secured::Secured;
use super::topic::{create_topic, wait_for_leaders};
use crate::{Process, ServerError, free_port};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};
use tempfile::TempDir;

/// Time limit of a start, on a machine that is busy with other tests.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a server may not notice that its disk is full.
#[cfg(target_os = "linux")]
const FULL_DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of one metadata request to a server that is starting.
const METADATA_TIMEOUT: Duration = Duration::from_millis(500);

/// An Apache Kafka server: one node that is both broker and controller, killed on drop. The controller
/// can be a [separate](KafkaServerBuilder::separate_controller) process, and other servers can
/// [join](KafkaServerBuilder::join) the cluster.
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
#[must_use = "the server is killed when this is dropped"]
pub struct KafkaServer {
    producer: Producer,
    // Declared before the folder, so that the process is gone when the folder is removed.
    process: Process,
    folder: TempDir,
    _controller: Option<Controller>,
    jvm: Jvm,
    ports: Ports,
    cluster: Cluster,
}

/// A controller in a process of its own.
#[derive(Debug)]
struct Controller {
    // Declared before the folder, so that the process is gone when the folder is removed.
    _process: Process,
    _folder: TempDir,
}

/// The ports of a server on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// For clients that may do everything.
    pub(super) plain: u16,
    /// For clients with TLS and a password.
    pub(super) secured: Option<u16>,
}

/// A cluster of Kafka servers.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    id: String,
    /// The port of the controller.
    controller: u16,
}

impl Cluster {
    /// Creates the cluster of a server with these ports.
    pub(super) fn new(port: u16, controller: u16) -> Self {
        Self { id: cluster_id(port), controller }
    }

    /// The address of the controller.
    pub(super) fn controller(&self) -> String {
        address(self.controller)
    }
}

impl KafkaServer {
    /// Starts a server without topics on a free port.
    ///
    /// # Errors
    ///
    /// Fails as [`KafkaServerBuilder::start`] does.
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// Creates a builder, for a server with other settings.
    pub fn builder() -> KafkaServerBuilder {
        KafkaServerBuilder::default()
    }

    /// The id of the broker's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The broker's address, for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        address(self.ports.plain)
    }

    /// The clients' port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.ports.plain
    }

    /// The version of Apache Kafka, as in the name of its jar.
    ///
    /// # Errors
    ///
    /// Fails if there is no such jar any more.
    pub fn version(&self) -> io::Result<String> {
        let names = fs::read_dir(&self.jvm.libs)?.flatten().map(|file| file.file_name());
        let mut names = names.filter_map(|name| name.into_string().ok());
        let version = names.find_map(|name| {
            let version = name.strip_prefix("kafka-clients-")?.strip_suffix(".jar")?;
            Some(version.to_owned())
        });
        version.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The broker's address for clients with TLS and a password.
    ///
    /// # Panics
    ///
    /// Panics if the server was started without [`KafkaServerBuilder::secured`].
    pub fn secured_bootstrap(&self) -> String {
        address(self.ports.secured.expect("the server was started with `secured`"))
    }

    /// Gives a user this right, and waits until the broker knows it. Blocks the thread.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or was started without [`KafkaServerBuilder::secured`].
    pub fn allow(&self, acl: &Acl) -> Result<(), ServerError> {
        Ok(acl.add(self.ports.plain)?)
    }

    /// Takes this right from a user, and waits until the broker knows that. Blocks the thread.
    ///
    /// # Errors
    ///
    /// Fails as [`allow`](Self::allow) does.
    pub fn forbid(&self, acl: &Acl) -> Result<(), ServerError> {
        Ok(acl.remove(self.ports.plain)?)
    }

    /// Creates a topic with the settings `config` and waits until clients can use it. Blocks the
    /// thread.
    ///
    /// # Errors
    ///
    /// Fails with the broker's error, or if a partition has no leader within 30 s.
    pub fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        config: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        create_topic(&self.bootstrap(), name, partitions, config)?;
        wait_for_leaders(self.producer.client(), name, partitions)
    }

    /// The server's producer. [`restart`](Self::restart) replaces it.
    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Creates the settings of a consumer: it starts at the first message, does not commit
    /// automatically, and has a session timeout of 3 s and a heartbeat interval of 0.1 s. Add the
    /// settings that the test is about. For `group.protocol=consumer`, remove `session.timeout.ms`
    /// and `heartbeat.interval.ms`, which the broker then sets.
    pub fn consumer_config(&self, group: &str) -> ClientConfig {
        consumer_config(&self.bootstrap(), group, "3000")
    }

    /// The path of the file that holds the first records of a partition.
    pub fn segment(&self, topic: &str, partition: i32) -> PathBuf {
        let partition = format!("{topic}-{partition}");
        self.folder.path().join(DATA_FOLDER).join(partition).join("00000000000000000000.log")
    }

    /// Kills the server with SIGKILL, as in a crash.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses the signal.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        Ok(())
    }

    /// Restarts the server on the same port with the same topics, offsets and settings, and waits
    /// until it answers. A server that still runs is killed first.
    ///
    /// # Errors
    ///
    /// Fails as [`KafkaServerBuilder::start`] does.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        let (folder, cluster) = (self.folder.path(), &self.cluster);
        (self.process, self.producer) = run(&self.jvm, folder, self.ports.plain, cluster)?;
        Ok(())
    }

    /// Lets no file of the server grow any more, as on a full disk, and waits until the server has noticed
    /// and exited, because it has no other folder. Kills it if it does not write for 10 s. All that it has
    /// acknowledged is there after a [`restart`](Self::restart), which also makes room.
    ///
    /// # Errors
    ///
    /// Fails if the server does not run.
    #[cfg(target_os = "linux")]
    pub fn fill_disk(&mut self) -> Result<(), ServerError> {
        self.process.limit_files()?;
        if self.process.wait(FULL_DISK_TIMEOUT)?.is_none() {
            self.process.kill()?;
        }
        Ok(())
    }

    /// Suspends the server (SIGSTOP): connections stay open, the kernel accepts new ones, and
    /// nothing is answered.
    ///
    /// # Errors
    ///
    /// Fails if the server does not run.
    pub fn pause(&mut self) -> Result<(), ServerError> {
        Ok(self.process.pause()?)
    }

    /// Resumes a paused server. The server may consider itself dead at first and register again.
    ///
    /// # Errors
    ///
    /// Fails if the server does not run.
    pub fn resume(&mut self) -> Result<(), ServerError> {
        Ok(self.process.resume()?)
    }

    pub(super) fn launch(
        builder: &KafkaServerBuilder,
        jvm: Jvm,
        port: u16,
    ) -> Result<Self, ServerError> {
        let folder = server_folder()?;
        let cluster = builder.cluster(port)?;
        let secured = builder.secured_listener();
        let ports = Ports { plain: port, secured: secured.map(|_| free_port()).transpose()? };
        let users = secured.map(Secured::format_arguments).unwrap_or_default();
        // The folder of the server, or of its controller, with what it is to read.
        let prepare = |folder: &Path, role| {
            let data = folder.join(DATA_FOLDER);
            if let Some(secured) = secured {
                secured.write_certificate(folder)?;
            }
            let properties = builder.render_properties(role, &ports, &cluster, &data);
            fs::write(folder.join(PROPERTIES_FILE), properties)?;
            if role != Role::Broker {
                return jvm.format(folder, &cluster, &users);
            }
            // All that formatting writes for a node without a controller, without starting a JVM.
            fs::create_dir(&data)?;
            let meta = format!("version=1\ncluster.id={}\nnode.id={port}\n", cluster.id);
            Ok(fs::write(data.join("meta.properties"), meta)?)
        };
        let controller = if builder.has_separate_controller() {
            let folder = server_folder()?;
            prepare(folder.path(), Role::Controller)?;
            let mut process = jvm.spawn_node(folder.path())?;
            let is_ready = || TcpStream::connect(cluster.controller()).is_ok();
            process.wait_until_ready(cluster.controller, START_TIMEOUT, is_ready)?;
            Some(Controller { _process: process, _folder: folder })
        } else {
            None
        };
        prepare(folder.path(), builder.role())?;
        let (process, producer) = run(&jvm, folder.path(), port, &cluster)?;
        Ok(Self { producer, process, folder, _controller: controller, jvm, ports, cluster })
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

/// How to run Kafka's programs.
#[derive(Clone, Debug)]
pub(super) struct Jvm {
    pub(super) java: PathBuf,
    pub(super) libs: PathBuf,
}

impl Jvm {
    /// Formats the data folder, which is then the place of these users.
    fn format(
        &self,
        folder: &Path,
        cluster: &Cluster,
        users: &[String],
    ) -> Result<(), ServerError> {
        let mut command = self.command("kafka.tools.StorageTool", folder);
        command.args(["format", "-t", &cluster.id, "-c", PROPERTIES_FILE]).args(users);
        Process::spawn(&command, folder.join("log"))?.wait_for_success(START_TIMEOUT)
    }

    /// Starts the node of this folder.
    fn spawn_node(&self, folder: &Path) -> io::Result<Process> {
        let mut command = self.command("kafka.Kafka", folder);
        command.arg(PROPERTIES_FILE);
        Process::spawn(&command, folder.join("log"))
    }

    /// Creates a command that runs one of Kafka's classes in the server's folder. The heap is small
    /// and only the first compiler is used, because a test's server lives for seconds.
    fn command(&self, class: &str, folder: &Path) -> Command {
        let mut command = Command::new(&self.java);
        command
            .args(["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC"])
            .args(["-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN"])
            // Java unpacks native libraries there, which a server that is killed does not delete.
            .arg(format!("-Djava.io.tmpdir={}", folder.display()))
            .arg("-cp")
            .arg(self.libs.join("*"))
            .arg(class)
            .current_dir(folder);
        command
    }
}

/// The folder of topics, inside the server's folder.
const DATA_FOLDER: &str = "data";

/// The settings file, inside the server's folder.
const PROPERTIES_FILE: &str = "server.properties";

/// Starts the server in this folder and waits until it answers.
fn run(
    jvm: &Jvm,
    folder: &Path,
    port: u16,
    cluster: &Cluster,
) -> Result<(Process, Producer), ServerError> {
    let mut process = jvm.spawn_node(folder)?;
    let mut producer = Producer::new(&address(port))?;
    process.wait_until_ready(port, START_TIMEOUT, || {
        let client = producer.client();
        // A foreign server may own the port while ours is about to fail because of it.
        let owns_port = client.fetch_cluster_id(METADATA_TIMEOUT).as_ref() == Some(&cluster.id);
        let is_ready = owns_port
            && client
                .fetch_metadata(None, METADATA_TIMEOUT)
                .is_ok_and(|metadata| !metadata.brokers().is_empty());
        // A client that a fenced broker has answered may never connect again:
        // https://github.com/confluentinc/librdkafka/issues/5301
        if !is_ready && let Ok(next) = Producer::new(&address(port)) {
            producer = next;
        }
        is_ready
    })?;
    Ok((process, producer))
}

fn server_folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("campanile-kafka-").tempdir()
}

/// The address of a port.
fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Derives the cluster id from the port. A Kafka id has 22 characters: 16 bytes in base64, hence
/// the A at the end. No other server started by a test kit has the same id.
fn cluster_id(port: u16) -> String {
    format!("{:0>10}{port:0>11}A", std::process::id())
}
