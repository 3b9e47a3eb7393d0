//! How a store reaches its server.

use std::fmt;
use std::time::Duration;

use campanile_core::Namespace;
use campanile_core::error::ConfigError;
use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::access::Access;
use crate::bucket::Buckets;
use crate::connection::Connections;
#[cfg(feature = "tls")]
use crate::tls::Certificates;
use crate::topology::{Address, Cluster, Sentinel, Topology};
use crate::wait::{Reach, Wait};
use crate::{ConnectError, Safety};

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
///     .with_command_timeout(Duration::from_millis(500))?;
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
///
/// # Permissions
///
/// What a user of Redis with a restrictive ACL needs, of whom it is asked: one server, the primary
/// behind sentinels and the sentinels themselves, or each node of a cluster.
///
/// ```text
/// server    ~campanile:* ~{* +eval +evalsha +get +mget +set +time +info +config|get
/// primary   ~campanile:* ~{* +eval +evalsha +get +mget +set +time +info +config|get +role
/// sentinel  +sentinel|get-master-addr-by-name
/// node      ~campanile:* ~{* +eval +evalsha +get +mget +set +time +info +config|get +cluster|slots +asking
/// ```
///
/// A URL with another database than 0 needs `+select` as well. For one namespace,
/// `~campanile:{payments} ~{payments:*` are keys enough. Without
/// `+info +config|get` the server is not looked at wholly at the start.
/// [`with_wait`](RedisConfig::with_wait) needs `+wait`, and
/// [`with_wait_aof`](RedisConfig::with_wait_aof) `+waitaof`.
#[derive(Clone)]
pub struct RedisConfig {
    servers: Servers,
    /// Of the servers, where the URLs do not say.
    credentials: Option<(Box<str>, Box<str>)>,
    #[cfg(feature = "tls")]
    pub(crate) certificates: Certificates,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) buckets: Buckets,
    pub(crate) safety: Safety,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) wait: Option<Wait>,
}

impl RedisConfig {
    /// The server at this URL: `redis://[user][:password@]host[:port][/database]`, or
    /// `redis+unix:///path/to/socket`; with the feature `tls`, also `rediss://` and the same.
    pub fn new(url: impl Into<String>) -> Self {
        Self::of(Servers::Standalone(url.into().into()))
    }

    /// The primary that the sentinels at these URLs know by this name; after a failover the one that
    /// they name then. A sentinel that is dead, hangs or tells what was is passed over; one that
    /// answers is enough. A primary that answers is left for another only when more than half of these
    /// sentinels name that one.
    ///
    /// User and password of a URL are the sentinel's own; those of the servers are set by
    /// [`with_credentials`](Self::with_credentials). The first URL's database is the servers'.
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
        Self::of(Servers::Sentinel { name: name.into().into(), urls: boxed(urls) })
    }

    /// The cluster that some of its nodes at these URLs belong to; one that answers is enough. All
    /// other addresses are those that the nodes announce. User and password of the first URL are
    /// those of all nodes.
    ///
    /// A master that is away holds up its own keys and no others: what is for them is refused at
    /// once until it is back, or a replica has taken over. What must come after one of these waits
    /// with it: in a consumer that processes by partition, soon every partition. Slots may be moved
    /// at any time. Each bucket of a batch is a call, so throughput comes with many records in flight.
    ///
    /// ```
    /// # use campanile_redis::RedisConfig;
    /// let config = RedisConfig::cluster(["redis://app:secret@n1:6379", "redis://n2:6379"]);
    /// ```
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self::of(Servers::Cluster(boxed(urls)))
    }

    fn of(servers: Servers) -> Self {
        Self {
            servers,
            credentials: None,
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(1),
            buckets: Buckets::DEFAULT,
            safety: Safety::default(),
            namespaces: Vec::new(),
            wait: None,
        }
    }

    /// The user of the servers and the password. Default: those of the URL; behind sentinels, none.
    pub fn with_credentials(
        mut self,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.credentials = Some((user.into().into(), password.into().into()));
        self
    }

    /// How long [`RedisStore::connect`](crate::RedisStore::connect) may take as a whole, a server
    /// that is not up yet included, and how long each connection that is made later. Default: 10 s,
    /// because a server that is started together with this process takes some to come up. One that
    /// has much data to load takes longer.
    ///
    /// A connection is made within the call that needs it, so it ends with that call's time, too.
    ///
    /// # Errors
    /// When it is zero.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        self.connect_timeout = not_zero("connect_timeout", timeout)?;
        Ok(self)
    }

    /// How long a batch of commands may take, from the call to the last answer, a new connection
    /// included. Default: 1 s: an answer takes a millisecond, what a fork or a slow disk holds up
    /// takes less than a second, and a renewal must leave time to be repeated.
    ///
    /// The lock keeper waits for no call longer than 5 s or a sixth of the lock's time to live; an
    /// event warns if that is less.
    ///
    /// # Errors
    /// When it is zero.
    pub fn with_command_timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        self.command_timeout = not_zero("command_timeout", timeout)?;
        Ok(self)
    }

    /// How many buckets a namespace has, which is into how many hash slots of a cluster its keys
    /// fall: a power of two, at most 256. Default: 16, about four for each shard of a usual
    /// cluster; each bucket is a call of its own there, so more are slower.
    ///
    /// It is fixed for a namespace at its first use: another count would look for every entry at
    /// the wrong place, and find nobody's lock. A store with another count is refused by Redis's
    /// copy of it (`campanile:{namespace}`).
    ///
    /// # Errors
    /// When it is no power of two, or out of range.
    pub fn with_buckets(mut self, count: u16) -> Result<Self, ConfigError> {
        self.buckets = Buckets::new(count)?;
        Ok(self)
    }

    /// How strictly [`RedisStore::connect`](crate::RedisStore::connect) takes what is wrong with the
    /// server. Default: [`Safety::Refuse`], because an evicted lock is held by two and an evicted
    /// completion runs again, without anybody noticing.
    pub fn with_safety(mut self, safety: Safety) -> Self {
        self.safety = safety;
        self
    }

    /// The namespaces that the store is for, so that what the server's user may do with their keys is
    /// looked at at the start, and not found out by the first record. Others can be used as well.
    /// Default: none, and a user who may not use the keys of every namespace is warned of.
    pub fn with_namespaces(mut self, namespaces: impl IntoIterator<Item = Namespace>) -> Self {
        self.namespaces = namespaces.into_iter().collect();
        self
    }

    /// Waits, before a lock or a completion is answered, until so many replicas have it in memory
    /// (`WAIT`), so that a failover to one of them does not lose it. Default: no, because it costs a
    /// round trip to the replicas, and what a failover loses runs again with the same key.
    ///
    /// Where fewer have it in time, the lock is refused as [unavailable], and its attempt handed back;
    /// a completion counts all the same, in [`RedisStore::shortfalls`]. So a replica that is away stops
    /// the consumer. The timeout comes on top of the command timeout, and is bounded with it.
    ///
    /// With fewer than all replicas it holds only if the failover chooses one that has it: Sentinel
    /// and Cluster prefer the one that has most. It cannot be used with [`with_wait_aof`], which
    /// replaces it.
    ///
    /// [unavailable]: campanile_idempotency::StoreErrorKind::Unavailable
    /// [`RedisStore::shortfalls`]: crate::RedisStore::shortfalls
    /// [`with_wait_aof`]: Self::with_wait_aof
    ///
    /// # Errors
    /// When the number or the timeout is zero.
    pub fn with_wait(mut self, replicas: u32, timeout: Duration) -> Result<Self, ConfigError> {
        if replicas == 0 {
            return Err(ConfigError::new("a wait for no replica waits for nothing"));
        }
        let timeout = not_zero("the wait's timeout", timeout)?;
        self.wait = Some(Wait { reach: Reach::Memory, replicas, timeout });
        Ok(self)
    }

    /// Waits, before a lock or a completion is answered, until it is on the primary's disk and on
    /// those of so many replicas, which may be none (`WAITAOF`; Redis 7.2 or later, with `appendonly
    /// yes`). Else as [`with_wait`](Self::with_wait), which it replaces. Default: no.
    ///
    /// With `appendfsync everysec` that takes up to a second for each call: it is for `always` on the
    /// replicas, or where few records are worth much.
    ///
    /// # Errors
    /// When the timeout is zero.
    pub fn with_wait_aof(mut self, replicas: u32, timeout: Duration) -> Result<Self, ConfigError> {
        let timeout = not_zero("the wait's timeout", timeout)?;
        self.wait = Some(Wait { reach: Reach::Disk, replicas, timeout });
        Ok(self)
    }

    /// The servers, to which nothing is connected yet.
    pub(crate) fn topology(&self) -> Result<Topology, ConnectError> {
        let access = |info| Access::like(info, self.connect_timeout);
        match &self.servers {
            Servers::Standalone(url) => {
                let info = self.authenticated(self.connection_info(url)?);
                Ok(Topology::Standalone(Connections::new(info, self.connect_timeout)))
            }
            Servers::Sentinel { name, urls } => {
                let (first, sentinels) = self.connection_infos(urls)?;
                let db = first.redis_settings().db();
                // Neither the sentinels' user nor their lack of databases is the servers'.
                let settings = |db| RedisConnectionInfo::default().set_db(db);
                let server = self.authenticated(first.set_redis_settings(settings(db)));
                let without_database = |info: ConnectionInfo| {
                    let settings = info.redis_settings().clone().set_db(0);
                    info.set_redis_settings(settings)
                };
                let sentinels = sentinels.into_iter().map(without_database).collect();
                let access = access(server);
                let sentinel = Sentinel::new(name.clone(), sentinels, access, self.command_timeout);
                Ok(Topology::Sentinel(Box::new(sentinel)))
            }
            Servers::Cluster(urls) => {
                let (first, nodes) = self.connection_infos(urls)?;
                let seeds: Option<_> = nodes.iter().map(|node| Address::of(node.addr())).collect();
                let seeds = seeds.ok_or_else(|| ConnectError::Url {
                    source: "the nodes of a cluster are reached over the network".into(),
                })?;
                let access = access(self.authenticated(first));
                Ok(Topology::Cluster(Cluster::new(access, seeds, self.command_timeout)))
            }
        }
    }

    /// Whether the servers are to be nodes of a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// What the URL says.
    fn connection_info(&self, url: &str) -> Result<ConnectionInfo, ConnectError> {
        let info = url.into_connection_info().map_err(ConnectError::url)?;
        #[cfg(feature = "tls")]
        let info = self.certificates.apply(info)?;
        let tcp = TcpSettings::default()
            // A batch is one write and waits for its answer: nothing is gained by holding it back.
            .set_nodelay(true)
            // Closing drops what the kernel has not delivered yet. It would otherwise go on sending it
            // for minutes, so that an acquire could arrive after the cancel that was sent for it over
            // the next connection, and lock a key for nobody.
            .set_linger_time(Duration::ZERO);
        Ok(info.set_tcp_settings(tcp))
    }

    /// What several say, the first once more.
    fn connection_infos(
        &self,
        urls: &[Box<str>],
    ) -> Result<(ConnectionInfo, Vec<ConnectionInfo>), ConnectError> {
        let infos: Result<Vec<_>, _> = urls.iter().map(|url| self.connection_info(url)).collect();
        let infos = infos?;
        match infos.first().cloned() {
            Some(first) => Ok((first, infos)),
            None => Err(ConnectError::Url { source: "there is none".into() }),
        }
    }

    fn authenticated(&self, info: ConnectionInfo) -> ConnectionInfo {
        let Some((user, password)) = &self.credentials else {
            return info;
        };
        let settings = info.redis_settings().clone().set_username(user).set_password(password);
        info.set_redis_settings(settings)
    }
}

/// Where the servers are told.
#[derive(Clone)]
enum Servers {
    Standalone(Box<str>),
    Sentinel { name: Box<str>, urls: Box<[Box<str>]> },
    Cluster(Box<[Box<str>]>),
}

fn boxed<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Box<[Box<str>]> {
    urls.into_iter().map(|url| url.into().into_boxed_str()).collect()
}

fn not_zero(name: &str, timeout: Duration) -> Result<Duration, ConfigError> {
    if timeout.is_zero() {
        return Err(ConfigError::new(format!("{name} is zero: nothing would ever be in time")));
    }
    Ok(timeout)
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
            .field("address", &address.as_deref().unwrap_or("not a URL of Redis"))
            .field("connect_timeout", &self.connect_timeout)
            .field("command_timeout", &self.command_timeout)
            .field("buckets", &self.buckets.count())
            .field("safety", &self.safety)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_url_shows_its_credentials() {
        for url in [
            "redis://alice:s3cret@127.0.0.1:6379/0",
            "redis://:s3cret@127.0.0.1",
            "redis://alice:s3cret@127.0.0.1:notaport",
            "alice:s3cret@nowhere",
            "redis+unix:///tmp/socket?user=alice&pass=s3cret",
        ] {
            let config = RedisConfig::from(url);
            let shown = format!("{config:?} {config:#?} {:?}", config.topology().err());
            assert!(!shown.contains("s3cret") && !shown.contains("alice"), "{shown}");
        }
    }

    #[test]
    fn a_timeout_of_zero_is_refused() {
        let config = RedisConfig::new("redis://127.0.0.1");
        assert!(config.clone().with_connect_timeout(Duration::ZERO).is_err());
        assert!(config.with_command_timeout(Duration::ZERO).is_err());
    }
}
