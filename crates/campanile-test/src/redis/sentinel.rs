use super::builder::RedisServerBuilder;
use super::member::Member;
use super::server::RedisServer;
use crate::{ServerError, eventually, program};
use std::io;
use std::time::Duration;
use tempfile::TempDir;

/// What the sentinels call the primary.
const NAME: &str = "tower";

/// How long the replicas may take to synchronise, and a failover.
const SETTLE: Duration = Duration::from_secs(30);

/// A primary with replicas, watched by sentinels: child processes, killed on drop.
///
/// Servers and sentinels are counted from 0; server 0 begins as the primary. A primary that does not
/// answer for 0.8 s is taken for failed, and a replica promoted soon after. The sentinels look at
/// who follows whom every ten seconds, so a second failover soon after the first takes as long.
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
pub struct RedisSentinel {
    sentinels: Vec<Member>,
    servers: Vec<Member>,
    /// Has the program under the name by which it is a sentinel.
    _folder: TempDir,
}

/// How a [`RedisSentinel`] is started; made by [`RedisSentinel::builder`].
#[derive(Clone, Debug)]
pub struct RedisSentinelBuilder {
    replicas: usize,
    sentinels: usize,
    down_after: Duration,
    server: RedisServerBuilder,
    server_password: Option<String>,
    sentinel: RedisServerBuilder,
}

impl RedisSentinelBuilder {
    /// How many replicas there are. Default: 1.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// How many sentinels, of which more than half must agree on a failover. Default: 3.
    ///
    /// # Panics
    ///
    /// When it is zero.
    pub fn sentinels(mut self, sentinels: usize) -> Self {
        assert!(sentinels > 0, "somebody must watch");
        self.sentinels = sentinels;
        self
    }

    /// How long a primary does not answer that is taken for failed. Default: 0.8 s. Sentinels ask once
    /// a second, so a busy one that was just promoted may be taken for failed, too, if there is another
    /// replica to promote; not so with 1.5 s.
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// A password for the default user of the servers. Default: none.
    ///
    /// # Panics
    ///
    /// As [`RedisServerBuilder::password`].
    pub fn password(mut self, password: &str) -> Self {
        self.server = self.server.password(password).config("masterauth", password);
        self.server_password = Some(password.to_owned());
        self
    }

    /// A password for the sentinels themselves. Default: none.
    ///
    /// # Panics
    ///
    /// As [`RedisServerBuilder::password`].
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel = self.sentinel.password(password).config("sentinel sentinel-pass", password);
        self
    }

    /// One line of each server's `redis.conf`, as [`RedisServerBuilder::config`].
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.server = self.server.config(name, value);
        self
    }

    /// One line of each sentinel's configuration, as [`RedisServerBuilder::config`].
    pub fn sentinel_config(mut self, name: &str, value: &str) -> Self {
        self.sentinel = self.sentinel.config(name, value);
        self
    }

    /// Starts the servers and the sentinels, and waits until the replicas have synchronised and the
    /// sentinels know them and each other.
    ///
    /// # Errors
    ///
    /// As [`RedisServerBuilder::start`]; and when that takes longer than 30 s.
    pub fn start(self) -> Result<RedisSentinel, ServerError> {
        let primary = self.server.clone().start()?;
        let follow = format!("127.0.0.1 {}", primary.port());
        let replica = self.server.clone().config("replicaof", &follow);
        let replicas = (0..self.replicas).map(|_| replica.clone().start());
        let mut servers = vec![Member::new(primary)];
        for replica in replicas {
            servers.push(Member::new(replica?));
        }

        // A sentinel asks the primary for its replicas at once, and not again for ten seconds.
        late(eventually(SETTLE, || servers.iter().skip(1).try_for_each(is_linked)))?;

        let folder = tempfile::Builder::new().prefix("campanile-sentinel-").tempdir()?;
        let program = folder.path().join("redis-sentinel");
        std::os::unix::fs::symlink(
            program::require("redis-server", super::builder::INSTALL)?,
            &program,
        )?;
        let mut sentinels = Vec::new();
        for _ in 0..self.sentinels {
            let sentinel = self.sentinel(servers[0].server.port());
            let start = |port| RedisServer::launch(&sentinel, &program, port);
            sentinels.push(Member::new(crate::port::with_free_port(start)?));
        }
        let started = RedisSentinel { sentinels, servers, _folder: folder };
        started.until_all_know()?;
        Ok(started)
    }

    fn sentinel(&self, primary: u16) -> RedisServerBuilder {
        let quorum = self.sentinels / 2 + 1;
        let down_after = self.down_after.as_millis();
        let mut sentinel = self
            .sentinel
            .clone()
            .config("sentinel monitor", &format!("{NAME} 127.0.0.1 {primary} {quorum}"))
            .config("sentinel down-after-milliseconds", &format!("{NAME} {down_after}"))
            .config("sentinel failover-timeout", &format!("{NAME} 2000"));
        if let Some(password) = &self.server_password {
            sentinel = sentinel.config("sentinel auth-pass", &format!("{NAME} {password}"));
        }
        sentinel
    }
}

impl RedisSentinel {
    /// Starts a primary, a replica and three sentinels.
    ///
    /// # Errors
    ///
    /// As [`RedisSentinelBuilder::start`].
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// With settings of its own.
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

    /// What the sentinels call the primary.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// The URLs of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| sentinel.server.url()).collect()
    }

    /// One of the servers.
    ///
    /// # Panics
    ///
    /// When there is none of this number, here and wherever one is named.
    pub fn server(&self, server: usize) -> &RedisServer {
        &self.servers[server].server
    }

    /// One of the sentinels.
    pub fn sentinel(&self, sentinel: usize) -> &RedisServer {
        &self.sentinels[sentinel].server
    }

    /// The server that most of the running sentinels take for the primary.
    pub fn primary(&self) -> Option<usize> {
        let mut votes = vec![0; self.servers.len()];
        for sentinel in &self.sentinels {
            let Some(address) = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]) else {
                continue;
            };
            let port = address.lines().last()?;
            let is_it = |member: &Member| member.server.port().to_string() == port;
            votes[self.servers.iter().position(is_it)?] += 1;
        }
        (0..votes.len()).find(|&server| votes[server] * 2 > votes.iter().sum())
    }

    /// Waits until the sentinels have another primary than `old`, which answers as such.
    ///
    /// # Errors
    ///
    /// When that takes longer than 30 s.
    pub fn until_other_primary(&self, old: usize) -> io::Result<usize> {
        let other = || {
            let primary = self.primary().filter(|&primary| primary != old)?;
            let role = self.servers[primary].ask(&["ROLE"])?;
            role.starts_with("master").then_some(primary)
        };
        eventually(SETTLE, other)
            .ok_or_else(|| io::Error::other(format!("no other primary within {SETTLE:?}")))
    }

    /// Makes the sentinels promote a replica while the primary runs, which becomes a replica then;
    /// waits for it.
    ///
    /// # Errors
    ///
    /// When there is none to promote, or it takes longer than 30 s.
    pub fn failover(&mut self) -> io::Result<usize> {
        let old = self.primary().ok_or_else(|| io::Error::other("there is no primary"))?;
        let asked = ["SENTINEL", "FAILOVER", NAME];
        let accepted = || self.sentinels.iter().find_map(|sentinel| sentinel.ask(&asked));
        eventually(SETTLE, accepted).ok_or_else(|| io::Error::other("no sentinel would"))?;
        self.until_other_primary(old)
    }

    /// Kills a server as a crash would (SIGKILL).
    ///
    /// # Errors
    ///
    /// As [`RedisServer::kill`], as do the following as those of the same name.
    pub fn kill(&mut self, server: usize) -> Result<(), ServerError> {
        self.servers[server].kill()
    }

    /// Starts a server again; the sentinels make it a replica if it is no longer the primary.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn restart(&mut self, server: usize) -> Result<(), ServerError> {
        self.servers[server].restart()
    }

    /// Makes a server hang (SIGSTOP).
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn pause(&mut self, server: usize) -> Result<(), ServerError> {
        self.servers[server].pause()
    }

    /// Lets a paused server go on.
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

    /// Makes a sentinel hang; it will be behind when it goes on.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn pause_sentinel(&mut self, sentinel: usize) -> Result<(), ServerError> {
        self.sentinels[sentinel].pause()
    }

    /// Lets a paused sentinel go on.
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn resume_sentinel(&mut self, sentinel: usize) -> Result<(), ServerError> {
        self.sentinels[sentinel].resume()
    }

    fn until_all_know(&self) -> Result<(), ServerError> {
        let others = format!("num-other-sentinels\n{}", self.sentinels.len() - 1);
        let replicas = format!("num-slaves\n{}", self.servers.len() - 1);
        let knows = |sentinel: &Member| {
            let state = sentinel.ask(&["SENTINEL", "MASTER", NAME])?;
            (state.contains(&others) && state.contains(&replicas)).then_some(())
        };
        late(eventually(SETTLE, || self.sentinels.iter().try_for_each(knows)))
    }
}

/// Whether a replica has synchronised.
fn is_linked(replica: &Member) -> Option<()> {
    let info = replica.ask(&["INFO", "replication"])?;
    info.contains("master_link_status:up").then_some(())
}

fn late(ready: Option<()>) -> Result<(), ServerError> {
    let late = || io::Error::other(format!("the sentinels are not ready within {SETTLE:?}"));
    Ok(ready.ok_or_else(late)?)
}
