//! The settings of a store of any kind.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;

use campanile_core::{BoxError, ConfigError};
use campanile_postgres::{PgConfig, PgStore};
use campanile_redis::{RedisConfig, RedisStore, Safety};
use futures_util::FutureExt;
use percent_encoding::percent_decode_str;

use crate::error::chain;
use crate::{AdminError, AnyStore};

/// The settings of a store of any kind, parsed from a URL:
///
/// | URL | store |
/// |---|---|
/// | `redis://[user][:password@]host[:port][/database]`, `redis+unix:///path/to/socket` | a single Redis server |
/// | `redis+sentinel://[user][:password@]host[:port][,host…]/name` | the primary that the sentinels know by this name; the user and password are the primary's |
/// | `redis+cluster://[user][:password@]host[:port][,host…]` | a Redis Cluster |
/// | `postgres://[user[:password]@]host[:port][,host…][/database]` | Postgres |
///
/// With `rediss` in place of `redis`, the connections use TLS, which needs the feature `store-tls`. The
/// user and the password are percent-encoded. `Debug` shows no credentials.
///
/// ```
/// use campanile_admin::StoreConfig;
///
/// # fn main() -> Result<(), campanile_core::ConfigError> {
/// let config: StoreConfig = "redis+sentinel://app:secret@s1:26379,s2:26379/tower".parse()?;
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreConfig {
    /// Redis: a single server, the primary behind sentinels, or a cluster.
    Redis(RedisConfig),
    /// Postgres.
    Postgres(PgConfig),
}

impl StoreConfig {
    /// Names the store of a URL, without its credentials and settings. URLs with the same name are those
    /// of one store; a store that is reached by several addresses has several names.
    pub fn name_of(url: &str) -> String {
        let (url, query) = url.split_once('?').unwrap_or((url, ""));
        let Hosts { scheme, hosts, path, .. } = Hosts::parse(url);
        let mut hosts: Vec<&str> = hosts.split(',').collect();
        hosts.sort_unstable();
        let scheme = if scheme.starts_with("postgres") { "postgres" } else { "redis" };
        let mut name = format!("{scheme}://{}/{path}", hosts.join(","));
        // Postgres accepts these there.
        let is_address =
            |pair: &&str| ["host", "port", "dbname"].iter().any(|it| pair.starts_with(it));
        query.split('&').filter(is_address).for_each(|pair| name.push_str(&format!("?{pair}")));
        name
    }

    /// Sets how long [`connect`](Self::connect) waits for a server that is not up. Default: 10 s.
    #[must_use]
    pub fn with_connect_timeout(self, timeout: Duration) -> Self {
        match self {
            Self::Redis(config) => Self::Redis(config.with_connect_timeout(timeout)),
            Self::Postgres(config) => Self::Postgres(config.with_connect_timeout(timeout)),
        }
    }

    /// Sets how long a batch of commands may take, from the call to the last answer. Default: 1 s, which
    /// suits lock keepers. A tool for which nobody's lock waits can be more patient.
    #[must_use]
    pub fn with_command_timeout(self, timeout: Duration) -> Self {
        match self {
            Self::Redis(config) => Self::Redis(config.with_command_timeout(timeout)),
            Self::Postgres(config) => Self::Postgres(config.with_command_timeout(timeout)),
        }
    }

    /// Trusts the certificate authorities in this PEM for TLS to the store, and no others. Default: the
    /// authorities that the system trusts.
    #[cfg(feature = "store-tls")]
    #[must_use]
    pub fn with_ca(self, pem: impl Into<Vec<u8>>) -> Self {
        match self {
            Self::Redis(config) => Self::Redis(config.with_ca(pem)),
            Self::Postgres(config) => Self::Postgres(config.with_ca(pem)),
        }
    }

    /// Presents this client certificate, with its chain, and authenticates with its private key (both
    /// PEM). Default: none.
    #[cfg(feature = "store-tls")]
    #[must_use]
    pub fn with_client_certificate(
        self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        match self {
            Self::Redis(config) => Self::Redis(config.with_client_certificate(certificates, key)),
            Self::Postgres(config) => {
                Self::Postgres(config.with_client_certificate(certificates, key))
            }
        }
    }

    /// Connects to the store.
    ///
    /// # Errors
    /// Fails if the URL is invalid, or if the server is not available within the connect timeout of
    /// the settings or refuses the credentials.
    pub async fn connect(self) -> Result<AnyStore, AdminError> {
        // Boxed, because the futures are nested deeply, and callers nest them deeper.
        match self {
            Self::Redis(config) => redis(RedisStore::connect(config).boxed().await),
            Self::Postgres(config) => postgres(PgStore::connect(config).boxed().await),
        }
    }

    /// Connects as [`connect`](Self::connect) does, but for tools that read entries: the user needs the
    /// permissions that [`RedisConfig`] and [`PgConfig`] list for that. The settings of Redis are not
    /// checked, and expired entries are not deleted from Postgres. Commands can be applied if the user
    /// has the permissions of an application as well.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_to_inspect(self) -> Result<AnyStore, AdminError> {
        match self {
            Self::Redis(config) => {
                redis(RedisStore::connect(config.with_safety(Safety::Off)).boxed().await)
            }
            Self::Postgres(config) => {
                let config = config.without_sweeping();
                postgres(PgStore::connect_to_inspect(config).boxed().await)
            }
        }
    }
}

fn redis(
    connected: Result<RedisStore, campanile_redis::ConnectError>,
) -> Result<AnyStore, AdminError> {
    connected.map(AnyStore::Redis).map_err(|error| match error {
        campanile_redis::ConnectError::Config(error) => error.into(),
        error @ campanile_redis::ConnectError::Url { .. } => invalid_url(error),
        error => unavailable(error),
    })
}

fn postgres(
    connected: Result<PgStore, campanile_postgres::ConnectError>,
) -> Result<AnyStore, AdminError> {
    connected.map(AnyStore::Postgres).map_err(postgres_error)
}

pub(crate) fn postgres_error(error: campanile_postgres::ConnectError) -> AdminError {
    match error {
        campanile_postgres::ConnectError::Config(error) => error.into(),
        error @ campanile_postgres::ConnectError::Url { .. } => invalid_url(error),
        error => unavailable(error),
    }
}

/// Neither the error nor its sources contain the URL, which may contain a password.
fn invalid_url(invalid: impl Into<BoxError>) -> AdminError {
    ConfigError::new(chain(&*invalid.into())).into()
}

fn unavailable(error: impl Into<BoxError>) -> AdminError {
    AdminError::unavailable("cannot connect to the store", error)
}

impl FromStr for StoreConfig {
    type Err = ConfigError;

    /// Parses the URL as far as it decides which kind of store there is;
    /// [`connect`](Self::connect) parses the rest.
    fn from_str(url: &str) -> Result<Self, ConfigError> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        Ok(match scheme {
            "postgres" | "postgresql" => Self::Postgres(PgConfig::new(url)),
            "redis" | "rediss" | "redis+unix" | "unix" => Self::Redis(RedisConfig::new(url)),
            "redis+sentinel" | "rediss+sentinel" => Self::Redis(sentinel(url)?),
            "redis+cluster" | "rediss+cluster" => Self::Redis(cluster(url)),
            _ => {
                return Err(ConfigError::new(
                    "the URL of the store must begin with redis://, rediss://, redis+unix://, \
                     redis+sentinel://, redis+cluster:// or postgres://",
                ));
            }
        })
    }
}

/// A URL of several hosts: the scheme of each host, the user and password, the hosts and the path.
struct Hosts<'a> {
    scheme: &'a str,
    credentials: Option<&'a str>,
    hosts: &'a str,
    path: &'a str,
}

impl<'a> Hosts<'a> {
    fn parse(url: &'a str) -> Self {
        let (kind, rest) = url.split_once("://").unwrap_or_default();
        let (scheme, _) = kind.split_once('+').unwrap_or((kind, ""));
        // A password may contain `@`; a host cannot.
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        Self { scheme, credentials, hosts, path }
    }

    fn urls(&self, credentials: Option<&str>) -> Vec<String> {
        let at = if credentials.is_some() { "@" } else { "" };
        let credentials = credentials.unwrap_or_default();
        let urls = self.hosts.split(',');
        urls.map(|host| format!("{}://{credentials}{at}{host}", self.scheme)).collect()
    }
}

fn sentinel(url: &str) -> Result<RedisConfig, ConfigError> {
    let parts = Hosts::parse(url);
    if parts.path.is_empty() {
        return Err(ConfigError::new(
            "the URL of sentinels must end with the name of the primary: \
             redis+sentinel://host:26379/name",
        ));
    }
    let config = RedisConfig::sentinel(parts.path, parts.urls(None));
    Ok(match parts.credentials {
        Some(credentials) => {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            let user = if user.is_empty() { "default" } else { user };
            config.with_credentials(decode(user)?, decode(password)?)
        }
        None => config,
    })
}

fn decode(encoded: &str) -> Result<Cow<'_, str>, ConfigError> {
    percent_decode_str(encoded).decode_utf8().map_err(|_| {
        ConfigError::new("the user or the password in the URL of the store is not UTF-8")
    })
}

fn cluster(url: &str) -> RedisConfig {
    let parts = Hosts::parse(url);
    RedisConfig::cluster(parts.urls(parts.credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_of_store_follows_from_the_scheme() {
        for (url, address) in [
            ("redis://127.0.0.1:6379/2", "127.0.0.1:6379"),
            ("redis+sentinel://:s3cret@s1:26379,s2:26379/tower", "tower"),
            ("redis+cluster://app:s3cret@n1:6379,n2:6379", "n2:6379"),
            ("postgres://app:s3cret@db1,db2/app", "db2"),
        ] {
            let config: StoreConfig = url.parse().unwrap();
            let shown = format!("{config:?}");
            assert!(shown.contains(address) && !shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn name_differs_by_what_is_another_store() {
        let name = StoreConfig::name_of;
        assert_eq!(name("rediss+cluster://app:s3cret@n2:2,n1:1"), "redis://n1:1,n2:2/");
        assert_eq!(name("redis://h:1"), name("rediss://:s3cret@h:1/"));
        assert_eq!(name("postgres://a:b@h,i/app"), name("postgresql://i,h/app?sslmode=require"));
        let names =
            ["redis://h:1", "redis://h:2", "redis://h:1/2", "redis+unix:///h:1", "postgres://h:1"];
        let names = names.iter().chain(&["postgres:///app?host=/a", "postgres:///app?host=/b"]);
        let mut names: Vec<_> = names.map(|url| name(url)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 7);
    }

    #[test]
    fn password_of_sentinels_url_is_percent_encoded() {
        assert_eq!(decode("p%40s%2Fs").unwrap(), "p@s/s");
        let error = "redis+sentinel://:s3cret%FF@s1/tower".parse::<StoreConfig>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the user or the password in the URL of the store is not UTF-8"
        );
    }

    #[test]
    fn invalid_url_error_omits_the_password() {
        for url in ["mysql://app:s3cret@db", "s3cret", "redis+sentinel://app:s3cret@s1:26379"] {
            let error = url.parse::<StoreConfig>().unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
