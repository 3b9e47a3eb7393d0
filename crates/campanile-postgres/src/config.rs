//! How a store reaches its server.

use std::fmt;
use std::time::Duration;

use campanile_core::error::ConfigError;
use tokio_postgres::Config;

use crate::ConnectError;
use crate::pool::{Pool, address};
#[cfg(feature = "tls")]
use crate::tls::Certificates;

/// Each operation is one statement, and reads the clock under its locks.
const ISOLATION: &str = "SET default_transaction_isolation = 'read committed'";

/// The settings of a [`PgStore`](crate::PgStore). A URL alone converts into them.
///
/// `Debug` shows the address and never the credentials.
///
/// ```
/// use campanile_postgres::PgConfig;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = PgConfig::new("postgres://app:secret@db1.internal,db2.internal/app")
///     .with_command_timeout(Duration::from_millis(500))?;
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
///
/// # Permissions
///
/// The user of the URL needs no right on any table, for the functions are their owner's:
///
/// ```text
/// GRANT USAGE ON SCHEMA campanile TO app;
/// GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app;
/// ```
///
/// The second is for the functions that are there, so it is needed again after each migration.
#[derive(Clone)]
pub struct PgConfig {
    url: Box<str>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    connections: usize,
    pub(crate) sweep_interval: Option<Duration>,
    #[cfg(feature = "tls")]
    pub(crate) certificates: Certificates,
}

impl PgConfig {
    /// The server at this URL, `postgres://[user[:password]@]host[:port][/database]`, or `key=value`
    /// pairs as libpq takes them. Of several hosts, the one is used that takes writes; after a failover
    /// that is another. One that says nothing, as a machine that has lost its power, holds up no other. A name
    /// with several addresses is as many hosts.
    ///
    /// Both sides look for each other after 10 s of silence, and take each other for gone after 25 s, where
    /// neither the URL (`keepalives_idle` and the like, `tcp_user_timeout`) nor its `options`
    /// (`tcp_keepalives_idle` and the like) say otherwise: what a consumer held that has vanished is free
    /// before its lock ends.
    ///
    /// Connections go to the server itself, or through a pooler that gives a session to each, as
    /// PgBouncer does in its session mode. One in another mode is refused.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into().into(),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(1),
            connections: 8,
            sweep_interval: Some(Duration::from_secs(10 * 60)),
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
        }
    }

    /// How long [`PgStore::connect`](crate::PgStore::connect) may take as a whole, a server that is not
    /// up yet included, and how long each connection that is made later. Default: 10 s, because a
    /// server that is started together with this process takes some to come up.
    ///
    /// A connection is not given up with the call that needed it first.
    ///
    /// # Errors
    /// When it is zero.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        self.connect_timeout = not_zero("connect_timeout", timeout)?;
        Ok(self)
    }

    /// How long a batch of commands may take, from the call to the last answer: the wait for a
    /// connection and a new one included. It is the server's `statement_timeout`, too. Default: 1 s: an
    /// answer takes milliseconds, what a slow disk holds up takes less than a second, and a renewal
    /// must leave time to be repeated.
    ///
    /// Four round trips to the server are the least, since a call may need a new connection; where it is
    /// less an event warns at the start. The lock keeper waits for no call longer than 5 s or a sixth of the
    /// lock's time to live; an event warns if that is less.
    ///
    /// # Errors
    /// When it is zero.
    pub fn with_command_timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        self.command_timeout = not_zero("command_timeout", timeout)?;
        Ok(self)
    }

    /// The most connections. Default: 8: one lock keeper has at most four batches in flight, and more
    /// connections than the server has cores make none of them faster.
    ///
    /// # Errors
    /// When it is zero.
    pub fn with_connections(mut self, connections: usize) -> Result<Self, ConfigError> {
        if connections == 0 {
            return Err(ConfigError::new("a store without a connection cannot be asked"));
        }
        self.connections = connections;
        Ok(self)
    }

    /// How long the store rests before it goes through the table again, and deletes what is over.
    /// Default: 10 min, for so long the space of what is over is not used, which took days until it was.
    ///
    /// # Errors
    /// When it is zero.
    pub fn with_sweep_interval(mut self, interval: Duration) -> Result<Self, ConfigError> {
        self.sweep_interval = Some(not_zero("sweep_interval", interval)?);
        Ok(self)
    }

    /// Leaves entries that are over in the table, for somebody else to
    /// [sweep](crate::PgStore::sweep) it. Default: the store does, some pages of the table at a time,
    /// and of many processes one, because a table that is forgotten grows for ever.
    pub fn without_sweeping(mut self) -> Self {
        self.sweep_interval = None;
        self
    }

    /// The connections of a store.
    pub(crate) fn pool(&self) -> Result<Pool, ConnectError> {
        self.pool_for_entries(self.connections)
    }

    /// For renewals beside that.
    pub(crate) fn separate(&self) -> Result<Pool, ConnectError> {
        self.pool_for_entries(2)
    }

    fn pool_for_entries(&self, connections: usize) -> Result<Pool, ConnectError> {
        let limit = self.command_timeout.as_millis().max(1);
        // Whose row is held by somebody else must leave time for the others of its batch.
        let wait = (limit / 5).max(1);
        let settings =
            format!("{ISOLATION}; SET statement_timeout = {limit}; SET lock_timeout = {wait}");
        self.pool_of(connections, &settings)
    }

    /// For who looks or migrates, and for the relay of an outbox.
    pub(crate) fn few(&self) -> Result<Pool, ConnectError> {
        self.pool_of(2, ISOLATION)
    }

    /// Connections for transactions of handlers, whose statements take as long as they take. Outside of
    /// those nothing can be written over them.
    pub(crate) fn transactions(&self, connections: usize) -> Result<Pool, ConnectError> {
        // A statement whose connection was given up must not hold its locks until it has ended.
        let settings = "SET client_connection_check_interval = 1000; \
            SET default_transaction_read_only = on";
        self.pool_of(connections, settings)
    }

    fn pool_of(&self, connections: usize, settings: &str) -> Result<Pool, ConnectError> {
        let config = self.parsed()?;
        #[cfg(feature = "tls")]
        let connector = self.certificates.connector()?;
        #[cfg(not(feature = "tls"))]
        let connector = crate::tls::without(&config)?;
        Ok(Pool::new(config, connector, connections, self.connect_timeout, settings))
    }

    fn parsed(&self) -> Result<Config, ConnectError> {
        let is_url = ["postgres://", "postgresql://"].iter().any(|it| self.url.starts_with(it));
        if is_url && self.url.matches('@').count() > 1 {
            // What stands behind the first is no host, and may be a part of the password.
            let source = "there is more than one `@`: write %40 for one in the user, the password or \
                another value";
            return Err(ConnectError::Url { source: source.into() });
        }
        self.url.parse().map_err(ConnectError::url)
    }
}

fn not_zero(name: &str, timeout: Duration) -> Result<Duration, ConfigError> {
    if timeout.is_zero() {
        return Err(ConfigError::new(format!("{name} is zero: nothing would ever be in time")));
    }
    Ok(timeout)
}

impl From<&str> for PgConfig {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl From<String> for PgConfig {
    fn from(url: String) -> Self {
        Self::new(url)
    }
}

impl fmt::Debug for PgConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.parsed().map(|config| address(&config));
        f.debug_struct("PgConfig")
            .field("address", &address.as_deref().unwrap_or("not a URL of Postgres"))
            .field("connect_timeout", &self.connect_timeout)
            .field("command_timeout", &self.command_timeout)
            .field("connections", &self.connections)
            .field("sweep_interval", &self.sweep_interval)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_url_shows_its_password() {
        for url in [
            "postgres://alice:s3cret@127.0.0.1:5432/app",
            "postgres://alice:s3cret@127.0.0.1:notaport",
            "host=127.0.0.1 user=alice password=s3cret",
            "host=127.0.0.1 passwort=s3cret",
            "alice:s3cret@nowhere",
            "postgres://alice:p@s3cret@127.0.0.1/app",
            "postgres://alice:p@s3cret/@127.0.0.1/app",
            "postgres://alice:p@s3cret@127.0.0.1:5432,127.0.0.2/app?sslmode=disable",
            "password=my s3cret=x host=127.0.0.1",
            "password=my s3cret host=127.0.0.1",
        ] {
            let config = PgConfig::from(url);
            let shown = format!("{config:?} {config:#?} {:?}", config.parsed().err());
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn an_option_of_other_clients_is_told_with_what_stands_for_it() {
        for url in ["sslmode=verify-full", "sslrootcert=/ca.pem", "sslcert=/c.pem"] {
            let error = PgConfig::new(format!("postgres://db/app?{url}")).parsed().unwrap_err();
            assert!(format!("{error:?}").contains("PgConfig::with_"), "{error:?}");
        }
    }

    #[test]
    fn what_could_never_work_is_refused() {
        let config = PgConfig::from("postgres://127.0.0.1");
        assert!(config.clone().with_connect_timeout(Duration::ZERO).is_err());
        assert!(config.clone().with_command_timeout(Duration::ZERO).is_err());
        assert!(config.clone().with_sweep_interval(Duration::ZERO).is_err());
        assert!(config.with_connections(0).is_err());
    }
}
