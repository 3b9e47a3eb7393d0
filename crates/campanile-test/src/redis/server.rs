use super::builder::RedisServerBuilder;
use super::resp;
use crate::{Process, ServerError};
use std::fs;
use std::io::{self, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How long a start may take, the loading of an append-only file included.
const START: Duration = Duration::from_secs(30);

/// How long a command of [`RedisServer::cli`] may take.
const REPLY: Duration = Duration::from_secs(10);

/// A `redis-server` of its own, killed on drop.
///
/// ```no_run
/// use campanile_test::RedisServer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut redis = RedisServer::builder().append_only(true).start()?;
/// redis.cli(&["SET", "bell", "rung"])?;
/// redis.kill()?;
/// redis.restart()?;
/// assert_eq!(redis.cli(&["GET", "bell"])?, "rung");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisServer {
    // Before the folder, so that the process is gone when the folder goes.
    process: Process,
    folder: TempDir,
    program: PathBuf,
    port: u16,
    password: Option<String>,
}

impl RedisServer {
    /// Starts an empty server that keeps nothing on disk, on a free port.
    ///
    /// # Errors
    ///
    /// As [`RedisServerBuilder::start`].
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// A server with settings of its own.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// The URL that clients take, with the password if there is one.
    pub fn url(&self) -> String {
        self.url_through(self.addr())
    }

    /// The URL of this server as reached through `addr`, which is a [`Proxy`](crate::Proxy)'s.
    pub fn url_through(&self, addr: SocketAddr) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@{addr}"),
            None => format!("redis://{addr}"),
        }
    }

    /// Where the server listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs one command as the default user and gives its reply as text, as `redis-cli` does: the
    /// elements of an array one a line, `(nil)` for nil.
    ///
    /// # Errors
    ///
    /// The text of an error reply; or no reply within 10 s, which is so while the server is paused.
    pub fn cli(&self, args: &[&str]) -> io::Result<String> {
        cli(&socket(self.folder.path()), self.password.as_deref(), args)
    }

    /// Kills the server as a crash would (SIGKILL). Clients see their connections closed and new
    /// ones refused.
    ///
    /// # Errors
    ///
    /// When the operating system refuses.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        Ok(())
    }

    /// Starts the server again on the same port with the same data folder and settings, and waits
    /// until it has loaded its data. If it still runs, it is killed first.
    ///
    /// # Errors
    ///
    /// As [`RedisServerBuilder::start`].
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        self.process = run(&self.program, self.folder.path(), self.port, self.password.as_deref())?;
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

    /// Lets a paused server go on; it then answers what has come in meanwhile.
    ///
    /// # Errors
    ///
    /// When the server does not run.
    pub fn resume(&mut self) -> Result<(), ServerError> {
        Ok(self.process.resume()?)
    }

    pub(super) fn launch(
        builder: &RedisServerBuilder,
        program: &Path,
        port: u16,
    ) -> Result<Self, ServerError> {
        let folder = tempfile::Builder::new().prefix("campanile-redis-").tempdir()?;
        let text = builder.text(port, folder.path(), &socket(folder.path()));
        fs::write(folder.path().join("redis.conf"), text)?;
        let process = run(program, folder.path(), port, builder.password.as_deref())?;
        Ok(Self {
            process,
            folder,
            program: program.to_owned(),
            port,
            password: builder.password.clone(),
        })
    }
}

/// Starts the server of this folder and waits until it answers.
fn run(
    program: &Path,
    folder: &Path,
    port: u16,
    password: Option<&str>,
) -> Result<Process, ServerError> {
    let mut command = Command::new(program);
    command.arg(folder.join("redis.conf")).current_dir(folder);
    let mut process = Process::spawn(&command, folder.join("log"))?;
    let socket = socket(folder);
    process.until_ready(port, START, || answers(cli(&socket, password, &["PING"])))?;
    Ok(process)
}

/// A server that is loading its data refuses with `LOADING`; one whose default user may do nothing
/// is there.
fn answers(ping: io::Result<String>) -> bool {
    let Err(error) = ping else { return true };
    let text = error.to_string();
    text.starts_with("NOAUTH") || text.starts_with("NOPERM")
}

/// The Unix socket is opened after the port, and is nobody else's: an answer on it says that this
/// very server has the port.
fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

fn cli(socket: &Path, password: Option<&str>, args: &[&str]) -> io::Result<String> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY))?;
    let mut stream = BufReader::new(stream);
    if let Some(password) = password {
        resp::command(&mut stream, &["AUTH", password])?;
    }
    resp::command(&mut stream, args)
}
