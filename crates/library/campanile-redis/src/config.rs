//! The settings of a store.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use campanile_core::Namespace;
use campanile_core::error::ConfigError;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::bucket::Buckets;
use crate::connection::SharedConnection;
use crate::connector::{Connector, Endpoint, Secrets, read};
use crate::topology::{Address, Cluster, Sentinel, Topology};
use crate::wait::{Durability, DurabilityLevel};
use crate::{ConnectError, Safety};

/// An idle connection is probed after 10 s, so that it stays known to a load balancer, and a dead one
/// is replaced after 25 s, as those of the Postgres store are.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
#[cfg(target_os = "linux")]
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(25);

/// The settings of a [`RedisStore`](crate::RedisStore). A URL alone converts into them.
///
/// `Debug` shows the address and never the credentials.
///
/// ```
/// use campanile_redis::RedisConfig;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = RedisConfig::new("redis://app:secret@redis.internal:6379/0")
///     .with_command_timeout(Duration::from_millis(500));
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
///
/// # Configuration files
///
/// With the feature `serde`, the settings implement `Deserialize`. Exactly one of `url`, `sentinel`
/// (with `name` and `urls`) and `cluster` (a list of URLs) is required. Every other field has the
/// name and the default of its method: `credentials` (with `user` and `password`),
/// `server_tls`, `connect_timeout`, `command_timeout`, `buckets`, `safety` (`"refuse"`, `"warn"` or `"off"`),
/// `namespaces`, and `wait` or `wait_aof` (with `replicas` and `timeout`). Durations are strings such as
/// `"500ms"`. An unknown field is an error. Certificates are set by methods.
///
/// # Permissions
///
/// A Redis user with a restrictive ACL needs the permissions below: on a single server, on the
/// primary behind sentinels and on the sentinels themselves, or on each node of a cluster.
///
/// ```text
/// server    ~campanile:* ~{* +eval +evalsha +get +mget +set +time +info +config|get
/// primary   ~campanile:* ~{* +eval +evalsha +get +mget +set +time +info +config|get +role
/// sentinel  +sentinel|get-master-addr-by-name
/// node      ~campanile:* ~{* +eval +evalsha +get +mget +set +time +info +config|get +cluster|slots +asking
/// ```
///
/// A URL with a database other than 0 also needs `+select`. For a single namespace, access to the
/// keys `~campanile:{payments} ~{payments:*` is enough; the braces are literal. Without `+info +config|get`, the server
/// cannot be inspected completely at the start. [`with_wait`](RedisConfig::with_wait) needs
/// `+wait`, and [`with_wait_aof`](RedisConfig::with_wait_aof) needs `+waitaof`.
///
/// For a tool that only reads entries, with [`InspectStore`](campanile_idempotency::InspectStore), a
/// user that cannot write is enough. It connects with [`Safety::Off`], because the check would refuse
/// it. Behind sentinels, it also needs `+role`, and in a cluster `+cluster|slots +asking`.
///
/// ```text
/// reader    %R~campanile:* %R~{* +get +getrange +pexpiretime +scan +time +info
/// ```
///
/// For a tool that also changes when entries expire, with
/// [`ExpireStore`](campanile_idempotency::ExpireStore), in place of the reader's:
///
/// ```text
/// purger    ~campanile:* ~{* +get +getrange +pexpiretime +scan +time +info +eval +pexpire
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisConfig {
    servers: Servers,
    /// Whether the servers behind sentinels use TLS. `None`: as the first sentinel.
    server_tls: Option<bool>,
    pub(crate) secrets: Secrets,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    buckets: u16,
    pub(crate) safety: Safety,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) durability: Option<Durability>,
}

impl RedisConfig {
    /// Configures the server at this URL: `redis://[user][:password@]host[:port][/database]`, or
    /// `redis+unix:///path/to/socket`. With the feature `redis-tls` of `campanile` (`tls` of this
    /// crate), also `rediss://` in the form of `redis://`.
    ///
    /// The user and the password are percent-encoded, as in any URL: a `/`, `?` or `#` in them is
    /// refused.
    pub fn new(url: impl Into<String>) -> Self {
        Self::with_servers(Servers::Standalone(url.into().into()))
    }

    /// Configures the primary that the sentinels at these URLs know by this name. After a failover,
    /// the store uses the server that they name then. A sentinel that is down, hangs or reports an
    /// outdated primary is skipped; one that answers is enough. A primary that still answers is
    /// given up for another only if more than half of these sentinels name the other one.
    ///
    /// The user and password in a URL are those of the sentinel; set those of the servers with
    /// [`with_credentials`](Self::with_credentials). The database in the first URL applies to the
    /// servers.
    ///
    /// When the store connects, the sentinels have a third of the [connect timeout], but at most 2 s,
    /// to answer, and each server that they name has as long to be connected to, so that one that
    /// hangs leaves time for another. Until the timeout has passed, the sentinels are asked again. A
    /// call that needs a new connection gives each a third of the [command timeout]. With TLS and a
    /// password, this time must be longer than five round trips.
    ///
    /// [connect timeout]: Self::with_connect_timeout
    /// [command timeout]: Self::with_command_timeout
    ///
    /// ```
    /// # use campanile_redis::RedisConfig;
    /// let config = RedisConfig::sentinel("tower", ["redis://s1:26379", "redis://s2:26379"])
    ///     .with_credentials("app", "secret");
    /// ```
    pub fn sentinel<U: Into<String>>(
        name: impl Into<String>,
        urls: impl IntoIterator<Item = U>,
    ) -> Self {
        Self::with_servers(Servers::Sentinel { name: name.into().into(), urls: boxed_urls(urls) })
    }

    /// Configures the cluster of the nodes at these URLs. One node that answers is enough; all
    /// other addresses are those that the nodes announce. The user and password in the first URL
    /// apply to all nodes.
    ///
    /// A master that is unavailable holds up only its own keys: commands for them fail at once
    /// until the master is back or a replica has taken over. Records ordered behind one of these
    /// keys wait with it, so in a consumer that processes by partition, every partition soon waits.
    /// Slots may be moved at any time. Each bucket of a batch takes a call of its own, so
    /// throughput requires many records in flight.
    ///
    /// ```
    /// # use campanile_redis::RedisConfig;
    /// let config = RedisConfig::cluster(["redis://app:secret@n1:6379", "redis://n2:6379"]);
    /// ```
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self::with_servers(Servers::Cluster(boxed_urls(urls)))
    }

    fn with_servers(servers: Servers) -> Self {
        Self {
            servers,
            server_tls: None,
            secrets: Secrets::default(),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(1),
            buckets: Buckets::DEFAULT.count(),
            safety: Safety::default(),
            namespaces: Vec::new(),
            durability: None,
        }
    }

    /// Sets the user and password of the servers. Default: those in the URL; behind sentinels,
    /// none.
    pub fn with_credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let credentials = (user.into(), password.into());
        self.with_credentials_from(move || Ok(credentials.clone()))
    }

    /// Reads the user and password of the servers for each new connection, so that a rotated
    /// password needs no restart. Replaces [`with_credentials`](Self::with_credentials).
    ///
    /// The function is called on the runtime of the call that needs the connection: it may read a
    /// file, but not wait for a server. If it fails, so does the connection.
    ///
    /// ```
    /// # use campanile_redis::RedisConfig;
    /// let config = RedisConfig::new("redis://redis.internal").with_credentials_from(|| {
    ///     let password = std::fs::read_to_string("/run/secrets/redis")?;
    ///     Ok(("app".into(), password.trim_end().into()))
    /// });
    /// ```
    pub fn with_credentials_from(
        mut self,
        read: impl Fn() -> io::Result<(String, String)> + Send + Sync + 'static,
    ) -> Self {
        self.secrets.credentials = Some(Arc::new(read));
        self
    }

    /// Sets whether the servers behind [sentinels](Self::sentinel) use TLS. Default: as the first
    /// sentinel, because usually all of them do or none does.
    pub fn with_server_tls(mut self, tls: bool) -> Self {
        self.server_tls = Some(tls);
        self
    }

    /// Sets how long [`RedisStore::connect`](crate::RedisStore::connect) may take as a whole,
    /// including the wait for a server that is not up yet, and how long each later connection may
    /// take. Default: 10 s, because a server that is started together with this process takes a few
    /// seconds to come up. A server that has much data to load takes longer.
    ///
    /// A later connection is opened within the call that needs it, and is limited by the time of
    /// that call, too: behind sentinels, by a third of the
    /// [command timeout](Self::with_command_timeout).
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a batch of commands may take, from the call to the last answer, including a
    /// new connection. Default: 1 s, because an answer takes a millisecond, a fork or a slow disk
    /// delays it by less than a second, and a renewal must leave time for a retry.
    ///
    /// Behind [sentinels](Self::sentinel), a third of it must be enough to connect to the primary.
    ///
    /// The lock keeper waits for a call at most 5 s or a sixth of the lock's time to live,
    /// whichever is shorter; it logs a warning if this timeout is longer.
    pub fn with_command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// Sets the number of buckets of a namespace, which is the number of hash slots that its keys
    /// occupy in a cluster: a power of two, at most 256. Default: 16, about four for each shard of
    /// a typical cluster. Each bucket takes a call of its own there, so more buckets are slower.
    ///
    /// The number is fixed when a namespace is first used, because a store with another number
    /// would look for every entry in the wrong place and find no lock. Redis keeps the number under
    /// `campanile:{namespace}`, with literal braces, and a store with another number is refused.
    pub fn with_buckets(mut self, count: u16) -> Self {
        self.buckets = count;
        self
    }

    /// Sets how strictly [`RedisStore::connect`](crate::RedisStore::connect) treats problems of the
    /// server. Default: [`Safety::Refuse`], because two owners can hold an evicted lock and an
    /// evicted completion runs again, both without any error.
    pub fn with_safety(mut self, safety: Safety) -> Self {
        self.safety = safety;
        self
    }

    /// Sets the namespaces that the store is for, so that the user's permissions on their keys, and
    /// their [number of buckets](Self::with_buckets), are checked at the start and not by the first
    /// record. Other namespaces can be used as well.
    /// Default: none, with a warning if the user has no access to the keys of every namespace.
    pub fn with_namespaces(mut self, namespaces: impl IntoIterator<Item = Namespace>) -> Self {
        self.namespaces = namespaces.into_iter().collect();
        self
    }

    /// Makes the store wait, before it answers a lock, a recorded step or a completion, until this many
    /// replicas have it in memory (`WAIT`), so that a failover to one of them does not lose it. Default: no
    /// wait, because it costs a round trip to the replicas, and what a failover loses runs again
    /// with the same key.
    ///
    /// If fewer replicas have it in time, a lock is refused as [unavailable] and its attempt is
    /// handed back; a step is not recorded; a completion is still acknowledged, and counted in [`RedisStore::shortfalls`].
    /// An unavailable replica therefore stops the consumer. The timeout is added to the command
    /// timeout, and the limits on the command timeout apply to their sum.
    ///
    /// With fewer than all replicas, the guarantee holds only if the failover promotes a replica
    /// that has the write: Sentinel and Cluster prefer the replica that has received the most.
    /// Cannot be combined with [`with_wait_aof`], which replaces it.
    ///
    /// [unavailable]: campanile_idempotency::StoreErrorKind::Unavailable
    /// [`RedisStore::shortfalls`]: crate::RedisStore::shortfalls
    /// [`with_wait_aof`]: Self::with_wait_aof
    pub fn with_wait(mut self, replicas: u32, timeout: Duration) -> Self {
        self.durability = Some(Durability { level: DurabilityLevel::Memory, replicas, timeout });
        self
    }

    /// Makes the store wait, before it answers a lock, a recorded step or a completion, until it is on the disk of
    /// the primary and of this many replicas, which may be zero (`WAITAOF`). Requires Redis 7.2 or
    /// later with `appendonly yes`. Otherwise like [`with_wait`](Self::with_wait), which it
    /// replaces. Default: no wait.
    ///
    /// With `appendfsync everysec`, the wait takes up to a second for each call. It is meant for
    /// `appendfsync always` on the replicas, or for few and valuable records.
    pub fn with_wait_aof(mut self, replicas: u32, timeout: Duration) -> Self {
        self.durability = Some(Durability { level: DurabilityLevel::Disk, replicas, timeout });
        self
    }

    /// Fails if the number of buckets is not valid.
    pub(crate) fn buckets(&self) -> Result<Buckets, ConfigError> {
        Buckets::new(self.buckets)
    }

    /// Checks the settings that have bounds. Returns the number of buckets.
    pub(crate) fn check(&self) -> Result<Buckets, ConfigError> {
        non_zero("connect_timeout", self.connect_timeout)?;
        non_zero("command_timeout", self.command_timeout)?;
        if let Some(Durability { level, replicas, timeout }) = self.durability {
            if level == DurabilityLevel::Memory && replicas == 0 {
                return Err(ConfigError::new(
                    "`replicas` of `with_wait` must be at least 1, got 0",
                ));
            }
            non_zero("timeout` of `with_wait", timeout)?;
        }
        let unreadable = |error: io::Error| ConfigError::new(error.to_string());
        read(self.secrets.credentials.as_ref(), "password").map_err(unreadable)?;
        #[cfg(feature = "tls")]
        self.secrets.certificates.read().map_err(unreadable)?;
        self.buckets()
    }

    /// Creates the topology of the servers, without connecting to them.
    pub(crate) fn topology(&self) -> Result<Topology, ConnectError> {
        let server = |info| Endpoint::new(info, self.secrets.clone());
        let connector = |info| Connector::new(server(info), self.connect_timeout);
        match &self.servers {
            Servers::Standalone(url) => {
                let server = server(self.connection_info(url)?);
                let (timeout, silences) = (self.connect_timeout, Arc::default());
                Ok(Topology::Standalone(SharedConnection::new(server, timeout, silences)))
            }
            Servers::Sentinel { name, urls } => {
                let (mut first, sentinels) = self.connection_infos(urls)?;
                if let Some(tls) = self.server_tls {
                    let rest = urls[0].split_once("://").map_or(&*urls[0], |(_, rest)| rest);
                    let scheme = if tls { "rediss" } else { "redis" };
                    first = self.connection_info(&format!("{scheme}://{rest}"))?;
                }
                let db = first.redis_settings().db();
                // The sentinels have users of their own and no databases; neither applies to the
                // servers.
                let settings = |db| RedisConnectionInfo::default().set_db(db);
                let server = first.set_redis_settings(settings(db));
                let without_database = |info: ConnectionInfo| {
                    let settings = info.redis_settings().clone().set_db(0);
                    let mut secrets = self.secrets.clone();
                    secrets.credentials = None;
                    Endpoint::new(info.set_redis_settings(settings), secrets)
                };
                let sentinels = sentinels.into_iter().map(without_database).collect();
                let connector = connector(server);
                let sentinel =
                    Sentinel::new(name.clone(), sentinels, connector, self.command_timeout);
                Ok(Topology::Sentinel(Box::new(sentinel)))
            }
            Servers::Cluster(urls) => {
                let (first, nodes) = self.connection_infos(urls)?;
                let seeds: Option<_> =
                    nodes.iter().map(|node| Address::from_connection_addr(node.addr())).collect();
                let seeds = seeds.ok_or_else(|| ConnectError::Url {
                    source: "a cluster node needs a network address, not a Unix socket".into(),
                })?;
                let connector = connector(first);
                Ok(Topology::Cluster(Cluster::new(connector, seeds, self.command_timeout)))
            }
        }
    }

    /// Checks whether the servers are expected to be nodes of a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// Parses a URL and applies the settings of all connections.
    fn connection_info(&self, url: &str) -> Result<ConnectionInfo, ConnectError> {
        #[cfg(not(feature = "tls"))]
        crate::tls::no_tls(url)?;
        check_credentials(url)?;
        let info = url.into_connection_info().map_err(ConnectError::url)?;
        #[cfg(feature = "tls")]
        self.secrets.certificates.check(&info, self.server_tls.is_none())?;
        let tcp = TcpSettings::default()
            // A batch is one write that waits for its answer, so delaying the write gains nothing.
            .set_nodelay(true)
            // Closing the socket drops what the kernel has not delivered yet. The kernel would
            // otherwise keep sending it for minutes, so that an acquire could arrive after the
            // cancel that was sent for it over the next connection, and lock a key without an
            // owner.
            .set_linger_time(Duration::ZERO)
            // A load balancer that has dropped an idle connection says nothing.
            .set_keepalive(
                TcpKeepalive::new()
                    .with_time(KEEPALIVE_IDLE)
                    .with_interval(KEEPALIVE_INTERVAL)
                    .with_retries(KEEPALIVE_PROBES),
            );
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(DEAD_PEER_TIMEOUT);
        Ok(info.set_tcp_settings(tcp))
    }

    /// Parses several URLs. The first is returned once more on its own.
    fn connection_infos(
        &self,
        urls: &[Box<str>],
    ) -> Result<(ConnectionInfo, Vec<ConnectionInfo>), ConnectError> {
        let infos: Result<Vec<_>, _> = urls.iter().map(|url| self.connection_info(url)).collect();
        let infos = infos?;
        match infos.first().cloned() {
            Some(first) => Ok((first, infos)),
            None => Err(ConnectError::Url { source: "no URL was given".into() }),
        }
    }
}

/// The URLs by which the servers are found.
#[derive(Clone)]
enum Servers {
    Standalone(Box<str>),
    Sentinel { name: Box<str>, urls: Box<[Box<str>]> },
    Cluster(Box<[Box<str>]>),
}

fn boxed_urls<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Box<[Box<str>]> {
    urls.into_iter().map(|url| url.into().into_boxed_str()).collect()
}

/// Rejects an `@` after the host: the text before it is part of the password, but would be parsed as a
/// host and shown.
fn check_credentials(url: &str) -> Result<(), ConnectError> {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.is_empty() || !tail.contains('@') {
        return Ok(());
    }
    let source = "the URL has an `@` after the host: write %2F, %3F, %23 or %40 for a `/`, `?`, `#` \
        or `@` in the user or the password";
    Err(ConnectError::Url { source: source.into() })
}

fn non_zero(name: &str, timeout: Duration) -> Result<(), ConfigError> {
    match timeout.is_zero() {
        true => Err(ConfigError::new(format!("`{name}` must be greater than zero"))),
        false => Ok(()),
    }
}

impl From<&str> for RedisConfig {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl From<String> for RedisConfig {
    fn from(url: String) -> Self {
        Self::new(url)
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.topology().map(|topology| topology.to_string());
        f.debug_struct("RedisConfig")
            .field("address", &address.as_deref().unwrap_or("invalid Redis URL"))
            .field("connect_timeout", &self.connect_timeout)
            .field("command_timeout", &self.command_timeout)
            .field("buckets", &self.buckets)
            .field("safety", &self.safety)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_credentials_are_never_shown() {
        for url in [
            "redis://alice:s3cret@127.0.0.1:6379/0",
            "redis://:s3cret@127.0.0.1",
            "redis://alice:s3cret@127.0.0.1:notaport",
            "alice:s3cret@nowhere",
            "redis+unix:///tmp/socket?user=alice&pass=s3cret",
            "redis://alice:p@s3cret?@127.0.0.1",
            "redis://:p@s3cret/0@127.0.0.1",
            "redis://:p@s3cret#@127.0.0.1",
        ] {
            let config = RedisConfig::from(url);
            let shown = format!("{config:?} {config:#?} {:?}", config.topology().err());
            assert!(!shown.contains("s3cret") && !shown.contains("alice"), "{shown}");
        }
    }

    #[test]
    fn password_may_contain_an_at_sign() {
        for url in [
            "redis://:p@ss@127.0.0.1/2?protocol=resp3",
            "redis://:p%40%2Fss@127.0.0.1",
            "redis+unix:///tmp/socket?pass=p@ss",
        ] {
            assert!(RedisConfig::from(url).topology().is_ok(), "{url}");
        }
    }

    #[test]
    fn idle_connections_are_probed() {
        let config = RedisConfig::new("redis://127.0.0.1");
        let info = config.connection_info("redis://127.0.0.1").unwrap();
        let shown = format!("{:?}", info.tcp_settings());
        for setting in ["time: Some(10s)", "interval: Some(5s)", "retries: Some(3)", "Some(25s)"] {
            assert!(shown.contains(setting), "{setting} is not in {shown}");
        }
    }

    #[test]
    fn error_names_setting_that_is_out_of_bounds() {
        let (config, second) = (RedisConfig::new("redis://127.0.0.1"), Duration::from_secs(1));
        for (config, setting) in [
            (config.clone().with_connect_timeout(Duration::ZERO), "`connect_timeout`"),
            (config.clone().with_command_timeout(Duration::ZERO), "`command_timeout`"),
            (config.clone().with_buckets(3), "`buckets`"),
            (config.clone().with_wait(0, second), "`replicas`"),
            (config.clone().with_wait(1, Duration::ZERO), "`timeout`"),
            (config.clone().with_wait_aof(0, Duration::ZERO), "`timeout`"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.starts_with(setting), "{error}");
        }
        assert!(config.with_wait_aof(0, second).check().is_ok());
    }
}
