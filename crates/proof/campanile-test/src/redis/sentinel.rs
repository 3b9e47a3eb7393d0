use super::builder::RedisServerBuilder;
use super::node::Node;
use super::server::RedisServer;
use crate::{ServerError, eventually};
use std::io;
use std::time::Duration;
use tempfile::TempDir;

/// The sentinels' name for the primary.
const PRIMARY_NAME: &str = "tower";

/// Time limit for the replicas to synchronize, and for a failover. Sentinels start no failover for
/// 30 s (TILT mode) after their process has not run for two seconds, as on a busy machine.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(90);

/// How often the sentinels are asked to promote a replica, and how long to wait for it each time. On a busy
/// machine, they give up when the replica is not promoted within two seconds.
const FAILOVER_ATTEMPTS: u32 = 6;
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(15);

/// A primary with replicas, monitored by sentinels: child processes, killed on drop.
///
/// Servers and sentinels are numbered from 0, and server 0 starts as the primary. A primary that
/// does not respond for 0.8 s is considered failed, and a replica is promoted soon after. The
/// sentinels check the replication topology every ten seconds, so a second failover soon after the
/// first takes that long.
///
/// ```no_run
/// use campanile_test::RedisSentinel;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut redis = RedisSentinel::start()?;
/// println!("{} at {:?}", redis.name(), redis.urls());
/// redis.kill(0)?;
/// let promoted = redis.until_other_primary(0)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the servers are killed when this is dropped"]
pub struct RedisSentinel {
    sentinels: Vec<Node>,
    servers: Vec<Node>,
    /// Contains the program under the name that makes it run as a sentinel.
    _folder: TempDir,
}

/// Builder for a [`RedisSentinel`]; see [`RedisSentinel::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisSentinelBuilder {
    replicas: usize,
    sentinels: usize,
    down_after: Duration,
    server: RedisServerBuilder,
    server_password: Option<String>,
    sentinel: RedisServerBuilder,
}

impl RedisSentinelBuilder {
    /// Sets the number of replicas. Default: 1.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets the number of sentinels, more than half of which must agree on a failover. Default: 3.
    ///
    /// # Panics
    ///
    /// Panics if `sentinels` is zero.
    pub fn sentinels(mut self, sentinels: usize) -> Self {
        assert!(sentinels > 0, "at least one sentinel is required");
        self.sentinels = sentinels;
        self
    }

    /// Sets how long a primary may be unresponsive before it is considered failed. Default: 0.8 s.
    /// Sentinels ping once a second, so a busy, newly promoted primary may be considered failed too
    /// if there is another replica to promote. A value of 1.5 s avoids that.
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// Starts servers and sentinels of Valkey instead of Redis, as [`RedisServerBuilder::valkey`]
    /// does.
    pub fn valkey(mut self) -> Self {
        self.server = self.server.valkey();
        self.sentinel = self.sentinel.valkey();
        self
    }

    /// Sets a password for the default user of the servers. Default: none.
    ///
    /// # Panics
    ///
    /// Panics as [`RedisServerBuilder::password`] does.
    pub fn password(mut self, password: &str) -> Self {
        self.server = self.server.password(password).config("masterauth", password);
        self.server_password = Some(password.to_owned());
        self
    }

    /// Sets a password for the sentinels themselves. Default: none.
    ///
    /// # Panics
    ///
    /// Panics as [`RedisServerBuilder::password`] does.
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel = self.sentinel.password(password).config("sentinel sentinel-pass", password);
        self
    }

    /// Adds a line to each server's `redis.conf`, as [`RedisServerBuilder::config`] does.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.server = self.server.config(name, value);
        self
    }

    /// Adds a line to each sentinel's configuration, as [`RedisServerBuilder::config`] does.
    pub fn sentinel_config(mut self, name: &str, value: &str) -> Self {
        self.sentinel = self.sentinel.config(name, value);
        self
    }

    /// Starts the servers and the sentinels, and waits until the replicas have synchronized and the
    /// sentinels know the replicas and each other.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisServerBuilder::start`] does, or if this takes longer than 90 s.
    pub fn start(self) -> Result<RedisSentinel, ServerError> {
        let primary = self.server.clone().start()?;
        let follow = format!("127.0.0.1 {}", primary.port());
        let replica = self.server.clone().config("replicaof", &follow);
        let replicas = (0..self.replicas).map(|_| replica.clone().start());
        let mut servers = vec![Node::new(primary)];
        for replica in replicas {
            servers.push(Node::new(replica?));
        }

        // A sentinel asks the primary for its replicas at once, and then not again for ten seconds.
        or_timeout(eventually(CONVERGENCE_TIMEOUT, || {
            servers.iter().skip(1).try_for_each(check_link_up)
        }))?;

        let folder = tempfile::Builder::new().prefix("campanile-sentinel-").tempdir()?;
        let program = folder.path().join("redis-sentinel");
        std::os::unix::fs::symlink(self.sentinel.program()?, &program)?;
        let mut sentinels = Vec::new();
        for _ in 0..self.sentinels {
            let sentinel = self.sentinel(servers[0].server.port());
            let start = |port| RedisServer::launch(&sentinel, &program, port);
            sentinels.push(Node::new(crate::port::with_free_port(start)?));
        }
        let started = RedisSentinel { sentinels, servers, _folder: folder };
        started.wait_for_discovery()?;
        Ok(started)
    }

    fn sentinel(&self, primary: u16) -> RedisServerBuilder {
        let quorum = self.sentinels / 2 + 1;
        let down_after = self.down_after.as_millis();
        let mut sentinel = self
            .sentinel
            .clone()
            .config("sentinel monitor", &format!("{PRIMARY_NAME} 127.0.0.1 {primary} {quorum}"))
            .config("sentinel down-after-milliseconds", &format!("{PRIMARY_NAME} {down_after}"))
            .config("sentinel failover-timeout", &format!("{PRIMARY_NAME} 2000"));
        if let Some(password) = &self.server_password {
            sentinel = sentinel.config("sentinel auth-pass", &format!("{PRIMARY_NAME} {password}"));
        }
        sentinel
    }
}

impl RedisSentinel {
    /// Starts a primary, a replica and three sentinels.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisSentinelBuilder::start`] does.
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// Creates a builder, for a group with other settings.
    pub fn builder() -> RedisSentinelBuilder {
        RedisSentinelBuilder {
            replicas: 1,
            sentinels: 3,
            down_after: Duration::from_millis(800),
            server: RedisServer::builder().config("repl-diskless-sync-delay", "0"),
            server_password: None,
            sentinel: RedisServer::builder(),
        }
    }

    /// The sentinels' name for the primary.
    pub fn name(&self) -> &'static str {
        PRIMARY_NAME
    }

    /// The URLs of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| sentinel.server.url()).collect()
    }

    /// A server of the group.
    ///
    /// # Panics
    ///
    /// Panics if no server has this number, as all methods that take a server or a sentinel do.
    pub fn server(&self, server: usize) -> &RedisServer {
        &self.servers[server].server
    }

    /// A sentinel of the group.
    pub fn sentinel(&self, sentinel: usize) -> &RedisServer {
        &self.sentinels[sentinel].server
    }

    /// Finds the server that most of the running sentinels consider the primary.
    pub fn primary(&self) -> Option<usize> {
        let mut votes = vec![0; self.servers.len()];
        for sentinel in &self.sentinels {
            let Some(address) =
                sentinel.query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME])
            else {
                continue;
            };
            let port = address.lines().last()?;
            let is_it = |node: &Node| node.server.port().to_string() == port;
            votes[self.servers.iter().position(is_it)?] += 1;
        }
        (0..votes.len()).find(|&server| votes[server] * 2 > votes.iter().sum())
    }

    /// Waits until the sentinels agree on a primary other than `old` and that server answers as a
    /// primary.
    ///
    /// # Errors
    ///
    /// Fails if this takes longer than 90 s.
    pub fn until_other_primary(&self, old: usize) -> io::Result<usize> {
        let other = || self.other_primary(old);
        eventually(CONVERGENCE_TIMEOUT, other).ok_or_else(no_other_primary)
    }

    /// Finds the server that the sentinels consider the primary and that answers as a primary, unless it
    /// is `old`.
    fn other_primary(&self, old: usize) -> Option<usize> {
        let primary = self.primary().filter(|&primary| primary != old)?;
        let role = self.servers[primary].query(&["ROLE"])?;
        role.starts_with("master").then_some(primary)
    }

    /// Makes the sentinels promote a replica while the primary runs, and waits for the promotion.
    /// The old primary becomes a replica.
    ///
    /// # Errors
    ///
    /// Fails if there is no replica to promote, or if the failover takes longer than 90 s.
    pub fn failover(&mut self) -> io::Result<usize> {
        let old =
            self.primary().ok_or_else(|| io::Error::other("the sentinels report no primary"))?;
        let asked = ["SENTINEL", "FAILOVER", PRIMARY_NAME];
        let accepted = || self.sentinels.iter().find_map(|sentinel| sentinel.query(&asked));
        for _ in 0..FAILOVER_ATTEMPTS {
            eventually(CONVERGENCE_TIMEOUT, accepted)
                .ok_or_else(|| io::Error::other("no sentinel accepted the failover"))?;
            if let Some(primary) = eventually(FAILOVER_TIMEOUT, || self.other_primary(old)) {
                return Ok(primary);
            }
        }
        Err(no_other_primary())
    }

    /// Kills a server with SIGKILL, as in a crash.
    ///
    /// # Errors
    ///
    /// Fails as [`RedisServer::kill`] does. The methods below fail like the methods of the same
    /// name there.
    pub fn kill(&mut self, server: usize) -> Result<(), ServerError> {
        self.servers[server].kill()
    }

    /// Restarts a server. The sentinels make it a replica if it is no longer the primary.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn restart(&mut self, server: usize) -> Result<(), ServerError> {
        self.servers[server].restart()
    }

    /// Suspends a server (SIGSTOP).
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn pause(&mut self, server: usize) -> Result<(), ServerError> {
        self.servers[server].pause()
    }

    /// Resumes a paused server.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn resume(&mut self, server: usize) -> Result<(), ServerError> {
        self.servers[server].resume()
    }

    /// Kills a sentinel.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn kill_sentinel(&mut self, sentinel: usize) -> Result<(), ServerError> {
        self.sentinels[sentinel].kill()
    }

    /// Suspends a sentinel, which will have outdated state when it resumes.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn pause_sentinel(&mut self, sentinel: usize) -> Result<(), ServerError> {
        self.sentinels[sentinel].pause()
    }

    /// Resumes a paused sentinel.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn resume_sentinel(&mut self, sentinel: usize) -> Result<(), ServerError> {
        self.sentinels[sentinel].resume()
    }

    fn wait_for_discovery(&self) -> Result<(), ServerError> {
        let others = format!("num-other-sentinels\n{}", self.sentinels.len() - 1);
        let replicas = format!("num-slaves\n{}", self.servers.len() - 1);
        let knows_all = |sentinel: &Node| {
            let state = sentinel.query(&["SENTINEL", "MASTER", PRIMARY_NAME])?;
            (state.contains(&others) && state.contains(&replicas)).then_some(())
        };
        or_timeout(eventually(CONVERGENCE_TIMEOUT, || {
            self.sentinels.iter().try_for_each(knows_all)
        }))
    }
}

/// The link is up once the replica has synchronized.
fn check_link_up(replica: &Node) -> Option<()> {
    let info = replica.query(&["INFO", "replication"])?;
    info.contains("master_link_status:up").then_some(())
}

fn no_other_primary() -> io::Error {
    io::Error::other(format!("timed out after {CONVERGENCE_TIMEOUT:?} waiting for another primary"))
}

fn or_timeout(ready: Option<()>) -> Result<(), ServerError> {
    let timed_out = || {
        io::Error::other(format!(
            "timed out after {CONVERGENCE_TIMEOUT:?} waiting for the sentinels"
        ))
    };
    Ok(ready.ok_or_else(timed_out)?)
}
