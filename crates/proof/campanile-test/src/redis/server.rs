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

/// Time limit of a start, including the loading of an append-only file, which may have the writes of half an
/// hour.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Time limit of a command sent by [`RedisServer::cli`].
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A `redis-server` process, killed on drop.
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
#[must_use = "the server is killed when this is dropped"]
pub struct RedisServer {
    // Declared before the folder, so that the process is gone when the folder is removed.
    process: Process,
    folder: TempDir,
    program: PathBuf,
    builder: RedisServerBuilder,
    port: u16,
}

impl RedisServer {
    /// Starts an empty server on a free port, which keeps nothing on disk.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisServerBuilder::start`] does.
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// Creates a builder, for a server with other settings.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The URL for clients, with the password if one is set.
    pub fn url(&self) -> String {
        self.url_through(self.addr())
    }

    /// The URL of this server as reached through `addr`, the address of a [`Proxy`](crate::Proxy).
    pub fn url_through(&self, addr: SocketAddr) -> String {
        match &self.builder.password {
            Some(password) => format!("redis://:{password}@{addr}"),
            None => format!("redis://{addr}"),
        }
    }

    /// The address on which the server listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command as the default user and reads its reply as text, as `redis-cli` does: one
    /// line per element of an array, and `(nil)` for nil.
    ///
    /// # Errors
    ///
    /// Fails with the text of an error reply, or if no reply arrives within 10 s, as while the
    /// server is paused.
    pub fn cli(&self, args: &[&str]) -> io::Result<String> {
        cli(&socket(self.folder.path()), self.builder.password.as_deref(), args)
    }

    /// Kills the server with SIGKILL, as in a crash. Existing connections are closed and new ones
    /// are refused.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses the signal.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        Ok(())
    }

    /// Restarts the server on the same port with the same data folder and settings, and waits until
    /// it has loaded its data. A server that still runs is killed first.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisServerBuilder::start`] does.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.process.kill()?;
        self.process = run(&self.builder, &self.program, self.folder.path(), self.port, &[])?;
        Ok(())
    }

    /// Restarts the server as [`restart`](Self::restart) does, with a pause for each command that it loads.
    /// Meanwhile it answers `LOADING`, as with a large data set.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisServerBuilder::start`] does, also if loading takes longer than 30 s.
    pub fn restart_slowly(&mut self, pause: Duration) -> Result<(), ServerError> {
        self.process.kill()?;
        let pause = pause.as_micros().to_string();
        // A server that loads answers after each so many bytes.
        let args = ["--key-load-delay", &pause, "--loading-process-events-interval-bytes", "1024"];
        let folder = self.folder.path();
        self.process = run(&self.builder, &self.program, folder, self.port, &args)?;
        self.cli(&["CONFIG", "SET", "key-load-delay", "0"])?;
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

    /// Resumes a paused server, which then answers the requests received in the meantime.
    ///
    /// # Errors
    ///
    /// Fails if the server does not run.
    pub fn resume(&mut self) -> Result<(), ServerError> {
        Ok(self.process.resume()?)
    }

    pub(super) fn launch(
        builder: &RedisServerBuilder,
        program: &Path,
        port: u16,
    ) -> Result<Self, ServerError> {
        let folder = tempfile::Builder::new().prefix("campanile-redis-").tempdir()?;
        let config = builder.render_config(port, folder.path(), &socket(folder.path()));
        fs::write(folder.path().join("redis.conf"), config)?;
        let process = run(builder, program, folder.path(), port, &[])?;
        Ok(Self { process, folder, program: program.to_owned(), builder: builder.clone(), port })
    }
}

/// Starts the server in this folder and waits until it answers.
fn run(
    builder: &RedisServerBuilder,
    program: &Path,
    folder: &Path,
    port: u16,
    args: &[&str],
) -> Result<Process, ServerError> {
    let mut command = Command::new(program);
    command.arg(folder.join("redis.conf")).args(args).current_dir(folder);
    command.envs(builder.env.iter().map(|(name, value)| (name, value)));
    let mut process = Process::spawn(&command, folder.join("log"))?;
    let socket = socket(folder);
    process.wait_until_ready(port, START_TIMEOUT, || {
        is_ready(cli(&socket, builder.password.as_deref(), &["PING"]))
    })?;
    Ok(process)
}

/// Checks whether the server is ready. A server that is loading its data answers `LOADING`. A
/// server with a default user without permissions is ready.
fn is_ready(ping: io::Result<String>) -> bool {
    let Err(error) = ping else { return true };
    let text = error.to_string();
    text.starts_with("NOAUTH") || text.starts_with("NOPERM")
}

/// The path of the Unix socket. The server opens it after the port and shares it with no other
/// server, so an answer on the socket proves that this server owns the port.
fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

fn cli(socket: &Path, password: Option<&str>, args: &[&str]) -> io::Result<String> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut stream = BufReader::new(stream);
    if let Some(password) = password {
        resp::command(&mut stream, &["AUTH", password])?;
    }
    resp::command(&mut stream, args)
}
