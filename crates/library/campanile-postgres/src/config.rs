//! The configuration of a store's connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "serde")]
use campanile_core::HumanDuration;
use campanile_core::error::ConfigError;
use tokio_postgres::Config;

use crate::ConnectError;
use crate::connect::{MAX_TIMEOUT, wait_for_connection};
use crate::pool::{Pool, format_address};
use crate::tls::Certificates;
use crate::watch::Watch;

/// Read committed is enough, because each operation is one statement that reads the clock after it
/// has locked its rows.
const ISOLATION: &str = "SET default_transaction_isolation = 'read committed'";

/// The settings of a [`PgStore`](crate::PgStore). A URL converts into settings with the defaults.
///
/// `Debug` shows the address and never the credentials.
///
/// ```
/// use campanile_postgres::PgConfig;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = PgConfig::new("postgres://app:secret@db1.internal,db2.internal/app")
///     .with_command_timeout(Duration::from_millis(500));
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
///
/// # Configuration files
///
/// With the feature `serde`, the settings implement `Deserialize`. `url` is required; every other
/// field has the name and the default of its method: `connect_timeout`, `command_timeout`,
/// `connections`, `inbox_connections`, and `sweep_interval` or `without_sweeping = true`. Times are
/// texts such as `"500ms"`. An unknown field is an error. Certificates are set by methods.
///
/// # Permissions
///
/// The user in the URL needs no permission on any table, because the functions run with the
/// permissions of their owner:
///
/// ```text
/// GRANT USAGE ON SCHEMA campanile TO app;
/// GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app;
/// ```
///
/// The second statement covers only functions that already exist, so run it again after each
/// migration.
///
/// A tool that [only inspects](crate::PgStore::connect_to_inspect) entries needs a user that may
/// read the table instead:
///
/// ```text
/// GRANT USAGE ON SCHEMA campanile TO operator;
/// GRANT SELECT ON campanile.entry TO operator;
/// ```
///
/// A tool that also changes when entries expire, with
/// [`ExpireStore`](campanile_idempotency::ExpireStore), needs in addition:
///
/// ```text
/// GRANT DELETE, UPDATE (expires_at) ON campanile.entry TO purger;
/// ```
#[derive(Clone)]
#[must_use]
pub struct PgConfig {
    url: Box<str>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    connections: usize,
    inbox_connections: usize,
    pub(crate) sweep_interval: Option<Duration>,
    pub(crate) certificates: Certificates,
    pub(crate) watch: Arc<Watch>,
}

impl PgConfig {
    /// Creates settings for the server at this URL,
    /// `postgres://[user[:password]@]host[:port][/database]`, or `key=value` pairs in libpq's
    /// syntax. If the URL names several hosts, the store uses the one that accepts writes, and
    /// after a failover another. A host that does not respond, such as a machine without power,
    /// does not delay the others. A name with several addresses counts as several hosts.
    ///
    /// Client and server probe each other after 10 s of silence and consider each other dead after
    /// 25 s, unless the URL (`keepalives_idle` and related options, `tcp_user_timeout`) or its
    /// `options` (`tcp_keepalives_idle` and related settings) set other times. Whatever a vanished
    /// consumer held is therefore free before its lock expires.
    ///
    /// Connect directly to the server, or through a pooler that gives each connection its own
    /// session, as PgBouncer does in session mode. A pooler in another mode is rejected.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into().into(),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(1),
            connections: 8,
            inbox_connections: 16,
            sweep_interval: Some(Duration::from_secs(10 * 60)),
            certificates: Certificates::default(),
            watch: Arc::new(Watch::new(Certificates::default())),
        }
    }

    /// Sets the time limit of [`PgStore::connect`](crate::PgStore::connect) as a whole, including
    /// the wait for a server that is not up yet, and of each connection that is opened later.
    /// Default: 10 s, because a server that is started together with this process takes some
    /// seconds to come up.
    ///
    /// If a call times out while its connection is being opened, the connection is still completed.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the time limit of a batch of commands, from the call to the last answer, including the
    /// wait for a connection and for a new one to be opened. It is also the server's
    /// `statement_timeout`. Default: 1 s, because an answer takes milliseconds, a slow disk delays
    /// it by less than a second, and a renewal must leave time for a retry.
    ///
    /// The minimum is four round trips to the server, since a call may need a new connection; a
    /// shorter timeout logs a warning at the start. The lock keeper waits for a call for at most
    /// 5 s or a sixth of the lock's time to live; it logs a warning if that is less than this
    /// timeout.
    pub fn with_command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// Sets the maximum number of connections, including those that were closed during a call that the
    /// server still performs. Default: 8, because a lock keeper has at most four
    /// batches in flight, and more connections than the server has cores make no batch faster.
    pub fn with_connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the maximum number of concurrent transactions of each [`Inbox`](crate::Inbox) of this
    /// store. Default: 16. A handler without a connection waits while it holds its lock, so allow as
    /// many connections as there are records in flight, or limit the records. The server and the
    /// role must allow these connections in addition to the store's.
    pub fn with_inbox_connections(mut self, connections: usize) -> Self {
        self.inbox_connections = connections;
        self
    }

    /// Sets the pause between two sweeps of the table, each of which deletes the expired entries.
    /// Default: 10 min. Until then the space of an expired entry is not reused, a short time
    /// compared with the days for which entries are kept.
    pub fn with_sweep_interval(mut self, interval: Duration) -> Self {
        self.sweep_interval = Some(interval);
        self
    }

    /// Disables sweeping: expired entries stay in the table until another process
    /// [sweeps](crate::PgStore::sweep) it. Default: the store sweeps, some pages of the table at a
    /// time and in only one process at a time, because a table that nobody sweeps grows forever.
    pub fn without_sweeping(mut self) -> Self {
        self.sweep_interval = None;
        self
    }

    /// Returns the pause between two sweeps, or `None` if sweeping is disabled.
    pub fn sweep_interval(&self) -> Option<Duration> {
        self.sweep_interval
    }

    /// Runs one query over a connection of its own. For Campanile's own tools; not part of the public
    /// contract.
    #[doc(hidden)]
    pub async fn query(&self, query: &str) -> Result<Vec<tokio_postgres::Row>, ConnectError> {
        let pool = self.check_pool()?;
        let client = wait_for_connection(&pool, self.connect_timeout).await?;
        let rows = client.query(query, &[]).await;
        rows.map_err(|error| ConnectError::from_server(error, pool.address()))
    }

    /// Checks the settings that have bounds.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let positive = |name: &str, is_zero: bool| match is_zero {
            true => Err(ConfigError::new(format!("`{name}` must be greater than zero"))),
            false => Ok(()),
        };
        positive("connect_timeout", self.connect_timeout.is_zero())?;
        positive("command_timeout", self.command_timeout.is_zero())?;
        positive("connections", self.connections == 0)?;
        positive("inbox_connections", self.inbox_connections == 0)?;
        positive("sweep_interval", self.sweep_interval.is_some_and(|it| it.is_zero()))
    }

    /// Creates the pool of a store.
    pub(crate) fn store_pool(&self) -> Result<Pool, ConnectError> {
        self.entry_pool(self.connections)
    }

    /// Creates the second pool of a store, which is used for renewals.
    pub(crate) fn renewal_pool(&self) -> Result<Pool, ConnectError> {
        self.entry_pool(2)
    }

    fn entry_pool(&self, connections: usize) -> Result<Pool, ConnectError> {
        let limit = self.command_timeout.min(MAX_TIMEOUT).as_millis().max(1);
        // A wait for a row that another session has locked must leave time for the other commands
        // of the batch.
        let wait = (limit / 5).max(1);
        let settings =
            format!("{ISOLATION}; SET statement_timeout = {limit}; SET lock_timeout = {wait}");
        self.build_pool(connections, &settings)
    }

    /// Creates a pool for the relay of an outbox.
    pub(crate) fn relay_pool(&self) -> Result<Pool, ConnectError> {
        self.build_pool(1, ISOLATION)
    }

    /// Creates a pool for checks and migrations, which sets nothing: a pooler could lend the session
    /// to another application afterwards.
    pub(crate) fn check_pool(&self) -> Result<Pool, ConnectError> {
        self.build_pool(2, "")
    }

    /// Creates a pool for the transactions of handlers. Their statements are not limited by the
    /// command timeout. Outside of a transaction of the inbox, these connections are read-only.
    pub(crate) fn transaction_pool(&self) -> Result<Pool, ConnectError> {
        // Once a connection is discarded, its running statement must not hold locks until it
        // finishes.
        let settings = "SET client_connection_check_interval = 1000; \
            SET default_transaction_read_only = on";
        self.build_pool(self.inbox_connections, settings)
    }

    fn build_pool(&self, connections: usize, settings: &str) -> Result<Pool, ConnectError> {
        let config = self.parse()?;
        let connector = self.certificates.connector(&config)?;
        let watch = self.watch.clone();
        Ok(Pool::new(config, connector, connections, self.connect_timeout, settings, watch))
    }

    fn parse(&self) -> Result<Config, ConnectError> {
        let is_url = ["postgres://", "postgresql://"].iter().any(|it| self.url.starts_with(it));
        if is_url && self.url.matches('@').count() > 1 {
            // The text after the first `@` is not a host and may be part of the password.
            let source = "the URL has more than one `@`: write %40 for an `@` in the user, the password \
                or another value";
            return Err(ConnectError::Url { source: source.into() });
        }
        self.url.parse().map_err(ConnectError::invalid_url)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for PgConfig {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(rename = "PgConfig", deny_unknown_fields)]
        struct Fields {
            url: String,
            connect_timeout: Option<HumanDuration>,
            command_timeout: Option<HumanDuration>,
            connections: Option<usize>,
            inbox_connections: Option<usize>,
            sweep_interval: Option<HumanDuration>,
            #[serde(default)]
            without_sweeping: bool,
        }

        let fields = Fields::deserialize(deserializer)?;
        if fields.without_sweeping && fields.sweep_interval.is_some() {
            return Err(serde::de::Error::custom(
                "`sweep_interval` and `without_sweeping` exclude each other",
            ));
        }
        let defaults = Self::new(fields.url);
        let or = |time: Option<HumanDuration>, default| time.map_or(default, |time| time.0);
        let sweep_interval = fields.sweep_interval.map(|time| time.0).or(defaults.sweep_interval);
        Ok(Self {
            connect_timeout: or(fields.connect_timeout, defaults.connect_timeout),
            command_timeout: or(fields.command_timeout, defaults.command_timeout),
            connections: fields.connections.unwrap_or(defaults.connections),
            inbox_connections: fields.inbox_connections.unwrap_or(defaults.inbox_connections),
            sweep_interval: sweep_interval.filter(|_| !fields.without_sweeping),
            ..defaults
        })
    }
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
        let address = self.parse().map(|config| format_address(&config));
        f.debug_struct("PgConfig")
            .field("address", &address.as_deref().unwrap_or("invalid Postgres URL"))
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
    fn debug_of_any_url_form_hides_the_password() {
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
            let shown = format!("{config:?} {config:#?} {:?}", config.parse().err());
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn deserialized_fields_have_the_names_of_the_methods() {
        let config: PgConfig = serde_json::from_str(
            r#"{
                "url": "postgres://alice:s3cret@db1/app", "connect_timeout": "20s",
                "command_timeout": "500ms", "connections": 4, "inbox_connections": 2,
                "sweep_interval": "1h"
            }"#,
        )
        .unwrap();
        let expected = PgConfig::new("postgres://alice:s3cret@db1/app")
            .with_connect_timeout(Duration::from_secs(20))
            .with_command_timeout(Duration::from_millis(500))
            .with_connections(4)
            .with_inbox_connections(2)
            .with_sweep_interval(Duration::from_secs(3600));
        assert_eq!(config.url, expected.url);
        assert_eq!(config.inbox_connections, expected.inbox_connections);
        let shown = format!("{config:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        assert_eq!(shown, format!("{expected:?}"));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn missing_fields_deserialize_to_the_defaults() {
        let parse = |json| serde_json::from_str::<PgConfig>(json);
        let config = parse(r#"{ "url": "postgres://db1/app" }"#).unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", PgConfig::new("postgres://db1/app")));
        let config = parse(r#"{ "url": "postgres://db1/app", "without_sweeping": true }"#).unwrap();
        assert_eq!(config.sweep_interval, None);
        for (json, expected) in [
            (r#"{}"#, "missing field `url`"),
            (r#"{ "url": "", "timeout": "1s" }"#, "unknown field `timeout`"),
            (r#"{ "url": "", "without_sweeping": true, "sweep_interval": "1h" }"#, "exclude"),
        ] {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn store_sweeps_unless_disabled() {
        let config = PgConfig::from("postgres://127.0.0.1");
        assert!(config.sweep_interval().is_some());
        let hour = Duration::from_secs(60 * 60);
        assert_eq!(config.clone().with_sweep_interval(hour).sweep_interval(), Some(hour));
        assert_eq!(config.without_sweeping().sweep_interval(), None);
    }

    #[test]
    fn unsupported_tls_option_error_names_the_replacement() {
        for url in ["sslmode=verify-full", "sslrootcert=/ca.pem", "sslcert=/c.pem"] {
            let error = PgConfig::new(format!("postgres://db/app?{url}")).parse().unwrap_err();
            assert!(format!("{error:?}").contains("PgConfig::with_"), "{error:?}");
        }
    }

    #[test]
    fn error_names_setting_that_is_zero() {
        let config = PgConfig::from("postgres://127.0.0.1");
        for (config, setting) in [
            (config.clone().with_connect_timeout(Duration::ZERO), "connect_timeout"),
            (config.clone().with_command_timeout(Duration::ZERO), "command_timeout"),
            (config.clone().with_sweep_interval(Duration::ZERO), "sweep_interval"),
            (config.clone().with_connections(0), "connections"),
            (config.clone().with_inbox_connections(0), "inbox_connections"),
        ] {
            let expected = format!("`{setting}` must be greater than zero");
            assert_eq!(config.check().unwrap_err().to_string(), expected);
        }
        assert!(config.check().is_ok());
    }
}
