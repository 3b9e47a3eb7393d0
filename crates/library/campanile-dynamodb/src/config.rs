//! The configuration of a store.

use std::fmt;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Config;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use campanile_core::ConfigError;

use crate::credentials::DetachedCache;

/// How often the SDK sends a request.
const MAX_TRIES: u32 = 4;

/// How long the SDK waits before it sends a request again, at most. It waits twice as long each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// How long [`connect`](crate::DynamoDbStore::connect) and [`create_table`](crate::create_table()) wait at
/// least: some credentials take seconds to load.
pub(crate) const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of a [`DynamoDbStore`](crate::DynamoDbStore).
///
/// `Debug` shows the name of the table, and nothing of the credentials.
///
/// # Permissions
///
/// The store needs `dynamodb:GetItem` and `dynamodb:PutItem` on the table.
/// [`create_table`](crate::create_table()) needs `CreateTable`, `DescribeTable`, `UpdateTimeToLive` and
/// `DescribeTimeToLive`.
#[derive(Clone)]
#[must_use]
pub struct DynamoDbConfig {
    pub(crate) sdk: Config,
    pub(crate) table: Box<str>,
    pub(crate) command_timeout: Duration,
    pub(crate) max_clock_difference: Duration,
}

impl DynamoDbConfig {
    /// Creates settings for this table.
    ///
    /// The region, the credentials, the endpoint and the interceptors are those of the SDK's
    /// configuration. Its HTTP client, its timeouts, its retries and its cache of credentials are
    /// replaced: a store has two sets of connections and two caches, one of each for the lock keeper's
    /// own thread, and every call ends in bounded time. TLS is by rustls with the system's certificate
    /// authorities. A proxy is not supported.
    ///
    /// Credentials are loaded again before they expire, or after 15 min if they have no expiry. A load
    /// has 10 s. The caches share the provider.
    ///
    /// With the crate `aws-config`, `Config::from(&aws_config::load_from_env().await)` finds the region
    /// and the credentials. [`aws_sdk_dynamodb`](crate::aws_sdk_dynamodb) is exported in the version that
    /// this crate uses.
    pub fn new(sdk: Config, table: impl Into<String>) -> Self {
        let config = Self {
            sdk,
            table: table.into().into(),
            command_timeout: Duration::from_secs(2),
            max_clock_difference: Duration::from_millis(250),
        };
        config.with_own_cache()
    }

    /// Sets the time limit of a command, including retries and new connections. A single request has a
    /// quarter of it. Default: 2 s, because DynamoDB answers in milliseconds, and rarely in some
    /// hundred, and a renewal must leave time for another.
    ///
    /// If the credentials take longer to load, the commands of that time fail, and the load continues.
    /// [`connect`](crate::DynamoDbStore::connect) and [`create_table`](crate::create_table()) wait for them
    /// for at least 10 s.
    pub fn with_command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// Sets by how much the clock of this process may certainly be ahead of DynamoDB's or behind it; see
    /// [clocks](crate#clocks). Default: 250 ms, because two clocks that pass then leave no overlap with
    /// the default TTL of 30 s, of which the margin of a lock is 3 s.
    ///
    /// A tenth of the TTL must be at least twice this, and 2 s, and a quarter of the
    /// [command timeout](Self::with_command_timeout).
    pub fn with_max_clock_difference(mut self, difference: Duration) -> Self {
        self.max_clock_difference = difference;
        self
    }

    /// Sets a new cache of credentials, which clones share. One of the SDK's configuration is replaced,
    /// because `aws-config` always sets one that other clients share, and whose loads end after 5 s.
    pub(crate) fn with_own_cache(mut self) -> Self {
        self.sdk = self.sdk.to_builder().identity_cache(DetachedCache::new()).build();
        self
    }

    /// Raises the time limit to that of the setup.
    pub(crate) fn for_setup(self) -> Self {
        let limit = self.command_timeout.max(SETUP_TIMEOUT);
        self.with_command_timeout(limit)
    }

    /// Checks the settings that have bounds.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.command_timeout.is_zero() {
            return Err(ConfigError::new("`command_timeout` must be greater than zero"));
        }
        Ok(())
    }

    /// Returns the time limit of a single request.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.command_timeout / 4
    }

    /// Creates a client with connections of its own.
    pub(crate) fn client(&self) -> Client {
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .build_https();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(self.request_timeout())
            .operation_attempt_timeout(self.request_timeout())
            .build();
        let retries = RetryConfig::standard()
            .with_max_attempts(MAX_TRIES)
            .with_initial_backoff(FIRST_BACKOFF);
        let sdk = self.sdk.to_builder().http_client(http);
        Client::from_conf(sdk.timeout_config(timeouts).retry_config(retries).build())
    }
}

impl fmt::Debug for DynamoDbConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbConfig")
            .field("table", &self.table)
            .field("command_timeout", &self.command_timeout)
            .field("max_clock_difference", &self.max_clock_difference)
            .finish_non_exhaustive()
    }
}
