use campanile_programs::dynamodb as programs;

use crate::{Process, ServerError, port, program};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of a start, on a machine that is busy with other tests.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Time limit of one request to a server that is starting.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

const INSTALL_JAVA: &str = "install it with `apt-get install default-jre-headless`, or `cargo xtask \
    install` in Campanile's checkout";

const INSTALL_JARS: &str = "fetch them with `cargo xtask install` in Campanile's checkout, or set \
    CAMPANILE_DYNAMODB_LIBS to a folder with the jars and native libraries of DynamoDB Local";

/// Amazon's DynamoDB Local: a server with the interface of DynamoDB, in memory, killed on drop. It needs
/// Java 17.
///
/// It accepts any credentials; each access key and region has tables of its own. It does not delete
/// expired items promptly, has one copy of an item, and listens on every address of the machine.
///
/// ```no_run
/// use campanile_test::DynamoDbServer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = DynamoDbServer::start()?;
/// let endpoint = server.url(); // for the SDK's `endpoint_url`
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the server is killed when this is dropped"]
pub struct DynamoDbServer {
    // Declared before the folder, so that the process is gone when the folder is removed.
    process: Process,
    folder: TempDir,
    port: u16,
}

impl DynamoDbServer {
    /// Starts a server without tables on a free port, and waits until it answers, which takes some
    /// seconds.
    ///
    /// # Errors
    ///
    /// Fails with [`ServerError::Missing`] if `java` or the jars are not installed, and otherwise with
    /// the reason why the server did not start and the end of its log.
    pub fn start() -> Result<Self, ServerError> {
        port::with_free_port(|port| {
            let folder = tempfile::Builder::new().prefix("campanile-dynamodb-").tempdir()?;
            let process = run(&folder, port)?;
            Ok(Self { process, folder, port })
        })
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        self.url_through(self.addr())
    }

    /// The URL of this server as reached through `addr`, the address of a [`Proxy`](crate::Proxy).
    pub fn url_through(&self, addr: SocketAddr) -> String {
        format!("http://{addr}")
    }

    /// The address on which clients connect.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Kills the server with SIGKILL. New connections are refused.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses the signal.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        Ok(())
    }

    /// Restarts the server on the same port, without tables, and waits until it answers. A server that
    /// still runs is killed first.
    ///
    /// # Errors
    ///
    /// Fails as [`start`](Self::start) does.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        self.process = run(&self.folder, self.port)?;
        Ok(())
    }

    /// Suspends the server (SIGSTOP): connections stay open, the kernel accepts new ones, and nothing is
    /// answered.
    ///
    /// # Errors
    ///
    /// Fails if the server does not run.
    pub fn pause(&mut self) -> Result<(), ServerError> {
        Ok(self.process.pause()?)
    }

    /// Resumes a paused server.
    ///
    /// # Errors
    ///
    /// Fails if the server does not run.
    pub fn resume(&mut self) -> Result<(), ServerError> {
        Ok(self.process.resume()?)
    }
}

/// Starts the server and waits until it answers.
fn run(folder: &TempDir, port: u16) -> Result<Process, ServerError> {
    let java = program::require("java", INSTALL_JAVA)?;
    let libs = programs::folder();
    if !libs.is_dir() {
        let what = format!("the folder {} of DynamoDB Local's jars", libs.display());
        return Err(ServerError::Missing { what, install: INSTALL_JARS });
    }
    let mut libraries = std::ffi::OsString::from("-Djava.library.path=");
    libraries.push(&libs);
    let mut command = Command::new(java);
    command
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg(libraries)
        .arg("-cp")
        .arg(libs.join("*"))
        .arg("com.amazonaws.services.dynamodbv2.local.main.ServerRunner")
        .args(["-inMemory", "-disableTelemetry", "-port", &port.to_string()])
        .current_dir(folder.path());
    let mut process = Process::spawn(&command, folder.path().join("log"))?;
    process.wait_until_ready(port, START_TIMEOUT, || is_ready(port))?;
    Ok(process)
}

/// Checks whether DynamoDB answers on this port. It refuses a request without credentials.
fn is_ready(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        connection.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        connection.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("com.amazonaws.dynamodb"))
}
