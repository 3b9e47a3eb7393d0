use super::builder::PgServerBuilder;
use super::programs::Programs;
use crate::{Process, ServerError, eventually, port};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of a start, including recovery after a crash.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A Postgres server, killed on drop.
///
/// ```no_run
/// use campanile_test::PgServer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut postgres = PgServer::start()?;
/// postgres.psql("CREATE TABLE bell (rung int)")?;
/// postgres.kill()?;
/// postgres.restart()?;
/// assert_eq!(postgres.psql("SELECT count(*) FROM bell")?, "0");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the server is killed when this is dropped"]
pub struct PgServer {
    // Declared before the folder, so that the process is gone when the folder is removed.
    process: Process,
    folder: TempDir,
    programs: Programs,
    builder: PgServerBuilder,
    port: u16,
    databases: AtomicU32,
}

impl PgServer {
    /// Starts an empty server on a free port, which does not wait for its disk.
    ///
    /// # Errors
    ///
    /// Fails as [`PgServerBuilder::start`] does.
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// Creates a builder, for a server with other settings.
    pub fn builder() -> PgServerBuilder {
        PgServerBuilder::default()
    }

    /// The URL for clients: the superuser, the password if one is set, and the database
    /// `postgres`.
    pub fn url(&self) -> String {
        self.url_through(self.addr())
    }

    /// The URL of this server as reached through `addr`, the address of a [`Proxy`](crate::Proxy).
    pub fn url_through(&self, addr: SocketAddr) -> String {
        self.database_url("postgres", addr)
    }

    /// Creates another database, so that tests can share a server without conflicts, and returns
    /// its URL.
    ///
    /// # Errors
    ///
    /// Fails as [`psql`](Self::psql) does.
    pub fn new_database(&self) -> io::Result<String> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{number}");
        self.psql(&format!("CREATE DATABASE {name}"))?;
        Ok(self.database_url(&name, self.addr()))
    }

    /// The address on which the server listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL in the database `postgres` as the superuser and returns the output of `psql`: one
    /// line per row, with columns separated by `|`.
    ///
    /// # Errors
    ///
    /// Fails with the server's error message for the first statement that fails.
    pub fn psql(&self, sql: &str) -> io::Result<String> {
        self.psql_in("postgres", sql)
    }

    /// Like [`psql`](Self::psql), in another database.
    ///
    /// # Errors
    ///
    /// Fails as [`psql`](Self::psql) does.
    pub fn psql_in(&self, database: &str, sql: &str) -> io::Result<String> {
        let (folder, port) = (self.folder.path().to_string_lossy(), self.port.to_string());
        let connection = ["-h", &*folder, "-p", &port, "-U", "postgres", "-d", database];
        let quiet = ["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql];
        self.programs.run("psql", connection.iter().chain(&quiet))
    }

    /// Starts a replica with this server's current data, which then follows this server. The
    /// replica can be read, and `SELECT pg_promote()` makes it take over.
    ///
    /// # Errors
    ///
    /// Fails as [`PgServerBuilder::start`] does.
    pub fn replica(&self) -> Result<Self, ServerError> {
        port::with_free_port(|port| {
            let folder = new_folder()?;
            let (socket, own_port) = (self.folder.path().to_string_lossy(), self.port.to_string());
            let from = ["-h", &*socket, "-p", &own_port, "-U", "postgres"];
            let options = ["--write-recovery-conf", "--checkpoint", "fast", "--no-sync", "-D"];
            let args = from.iter().chain(&options).map(Path::new).map(Path::to_owned);
            self.programs.run("pg_basebackup", args.chain([data_folder(folder.path())]))?;
            Self::launch_in(folder, self.builder.clone(), self.programs.clone(), port)
        })
    }

    /// Kills the server with SIGKILL, as in a crash of its machine. On Linux, existing connections
    /// are closed by the time this method returns; elsewhere, their server processes notice the crash
    /// a moment later. New connections are refused.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses the signal.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        self.process.kill_with_children()?;
        Ok(())
    }

    /// Restarts the server on the same port with the same data and settings, and waits until it
    /// answers. A server that still runs is killed first.
    ///
    /// # Errors
    ///
    /// Fails as [`PgServerBuilder::start`] does.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.process.kill_with_children()?;
        let attempt = || match run(&self.programs, self.folder.path(), self.port) {
            // Where children are not found, they exit slightly later than the server.
            Err(ServerError::Exited { log, .. }) if log.contains("still in use") => None,
            result => Some(result),
        };
        let process = eventually(START_TIMEOUT, attempt);
        self.process =
            process.unwrap_or_else(|| run(&self.programs, self.folder.path(), self.port))?;
        Ok(())
    }

    pub(super) fn launch(
        builder: PgServerBuilder,
        programs: Programs,
        port: u16,
    ) -> Result<Self, ServerError> {
        let folder = new_folder()?;
        let data = data_folder(folder.path());
        let initdb = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-N", "-D"];
        programs.run("initdb", initdb.iter().map(Path::new).chain([&*data]))?;
        fs::write(data.join("pg_hba.conf"), builder.render_hba())?;
        builder.write_certificates(&data)?;
        Self::launch_in(folder, builder, programs, port)
    }

    /// Starts a server on the data in this folder.
    fn launch_in(
        folder: TempDir,
        builder: PgServerBuilder,
        programs: Programs,
        port: u16,
    ) -> Result<Self, ServerError> {
        // Later lines of the file take precedence.
        let settings = data_folder(folder.path()).join("postgresql.conf");
        let config = builder.render_config(port, folder.path());
        OpenOptions::new().append(true).open(settings)?.write_all(config.as_bytes())?;
        let process = run(&programs, folder.path(), port)?;
        let databases = AtomicU32::new(0);
        Ok(Self { process, folder, programs, builder, port, databases })
    }

    fn database_url(&self, database: &str, addr: SocketAddr) -> String {
        let password = self.builder.password.as_ref().map_or(String::new(), |it| format!(":{it}"));
        format!("postgres://postgres{password}@{addr}/{database}")
    }
}

/// Starts the server in this folder and waits until it answers.
fn run(programs: &Programs, folder: &Path, port: u16) -> Result<Process, ServerError> {
    let mut command = programs.server_command();
    command.arg("-D").arg(data_folder(folder)).current_dir(folder);
    let mut process = Process::spawn(&command, folder.join("log"))?;
    let pid = process.pid();
    process.wait_until_ready(port, START_TIMEOUT, || is_ready(&data_folder(folder), pid))?;
    Ok(process)
}

/// Checks whether the server reports itself ready, in a file with its process id in line 1 and its
/// status in line 8.
fn is_ready(data: &Path, pid: u32) -> bool {
    let text = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let line = |number: usize| text.lines().nth(number - 1).map(str::trim);
    line(1) == Some(&pid.to_string()) && matches!(line(8), Some("ready" | "standby"))
}

fn new_folder() -> io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("campanile-postgres-").tempdir()?;
    Programs::chown_to_server_user(folder.path())?;
    Ok(folder)
}

fn data_folder(folder: &Path) -> PathBuf {
    folder.join("data")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    #[cfg(target_os = "linux")]
    fn killed_server_leaves_no_shared_memory() {
        let mut server = PgServer::start().unwrap();
        server.kill().unwrap();
        // The columns of a segment are its key, its id, its mode, its size and its creator.
        let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap();
        let creators = segments.lines().filter_map(|line| line.split_whitespace().nth(4));
        let own = creators.filter(|creator| *creator == server.process.pid().to_string()).count();
        assert!(own == 0 || !Programs::isolates_memory(), "{segments}");
        server.restart().unwrap();
        assert_eq!(server.psql("SELECT 1").unwrap(), "1");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn kill_ends_a_session_that_never_waits() {
        let mut server = PgServer::start().unwrap();
        let (programs, url) = (server.programs.clone(), server.url());
        let busy = "DO $$ BEGIN LOOP END LOOP; END $$";
        let session = thread::spawn(move || {
            programs.run("psql", [Path::new(&url), Path::new("-c"), Path::new(busy)])
        });
        let count =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO%' AND state = 'active'";
        eventually(START_TIMEOUT, || (server.psql(count).unwrap() == "1").then_some(())).unwrap();
        server.kill().unwrap();
        eventually(START_TIMEOUT, || session.is_finished().then_some(())).unwrap();
        assert!(session.join().unwrap().is_err());
    }
}
