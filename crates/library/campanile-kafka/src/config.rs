//! The consumer's settings for librdkafka.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use campanile_core::{BoxError, ConfigError};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use rdkafka::{ClientConfig, Offset};
use tracing::level_filters::LevelFilter;

use crate::client::ClientSettings;
use crate::oauth::{OauthToken, OauthTokens};

/// Settings for tasks of the driver, which librdkafka must not perform as well.
const FORCED_OFF: &[&str] = &["enable.auto.commit", "enable.auto.offset.store"];

/// Defaults for settings that the user has not set.
const DEFAULTS: &[(&str, &str)] = &[
    // A group that is new, or has lost its offset, skips nothing; records that it reads again are
    // duplicates.
    ("auto.offset.reset", "earliest"),
    // The default of the Java client. Records that were corrupted in transit or on a broker's disk are
    // not processed.
    ("check.crcs", "true"),
    // For each of the queues that partitions share. The driver also has a budget of its own.
    ("queued.min.messages", "300"),
    ("queued.max.messages.kbytes", "128"),
    // Shortens the runs of records from one partition.
    ("max.partition.fetch.bytes", "65536"),
    // Fetches again soon after a queue was full; the default is a second.
    ("fetch.queue.backoff.ms", "5"),
    ("fetch.wait.max.ms", "10"),
];

/// The largest fetch, unless the user has set a message size that contradicts it. Uncompressed records
/// keep the whole response that contains them in memory.
const FETCH_MAX_BYTES: (&str, &str) = ("fetch.max.bytes", "2097152");
const MESSAGE_SIZES: &[&str] = &["message.max.bytes", "receive.message.max.bytes"];

/// Settings with a fixed set of values that this crate compares.
const COMPARED: &[&str] = &["auto.offset.reset", "group.protocol", "isolation.level"];

/// The configuration of a consumer: librdkafka settings, which override the driver's defaults.
///
/// ```
/// use campanile_kafka::ConsumerConfig;
///
/// let config = ConsumerConfig::new("localhost:9092", "billing")
///     .set("security.protocol", "plaintext")
///     .set("session.timeout.ms", "10000");
/// ```
///
/// Settings can also come from the [environment](Self::from_env), or from a file, as any iterator of
/// names and values:
///
/// ```
/// use campanile_kafka::ConsumerConfig;
///
/// let file = "bootstrap.servers=localhost:9092\ngroup.id=billing";
/// let config: ConsumerConfig = file.lines().filter_map(|line| line.split_once('=')).collect();
/// ```
///
/// These defaults differ from librdkafka's: `partition.assignment.strategy` is `cooperative-sticky`
/// (except with `group.protocol=consumer`), `auto.offset.reset` is `earliest`, `check.crcs` is `true`,
/// and the queues are small, because the driver has a budget of its own. `enable.auto.commit` and
/// `enable.auto.offset.store` are always `false`.
///
/// Records that do not match their checksum, or that librdkafka cannot read, end serving with an error
/// that names their partition. No record behind them is processed or committed. To skip corrupt records,
/// set the group's offset behind them; to process them as they are, set `check.crcs` to `false`.
///
/// `auto.offset.reset` applies to partitions for which the group has no offset. If the records at the group's
/// offset were deleted, or the topic was recreated, the partition continues at the first record that exists;
/// with `error`, serving ends.
///
/// With an `auto.offset.reset` of `latest`, a group skips the records that a partition contains before
/// the group first reads from it. The first record that is delivered determines this start offset. The
/// offset is committed while that record is still unfinished, so that the next owner of the partition
/// misses no record from there on. For a partition that has not delivered a record yet, no offset is
/// committed: records that are produced there between a stop and the next start are skipped, too.
#[derive(Clone)]
#[must_use]
pub struct ConsumerConfig {
    pub(crate) client: ClientSettings,
    /// For errors, which name the variable that has to be changed.
    environment: Option<Environment>,
}

/// The origin of settings that were read from the environment.
#[derive(Clone)]
struct Environment {
    prefix: String,
    /// The variable of each setting that has not been set otherwise since.
    variables: HashMap<String, String>,
}

impl ConsumerConfig {
    /// Creates a configuration with these brokers (`host:port`, separated by commas) and this group.
    pub fn new(brokers: impl Into<String>, group: impl Into<String>) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers).set("group.id", group);
        config.into()
    }

    /// Creates a configuration from the environment variables with this prefix. The
    /// rest of a name, in lower case and with `.` for each `_`, is the name of the setting: with the
    /// prefix `BILLING_KAFKA_`, the variable `BILLING_KAFKA_BOOTSTRAP_SERVERS` sets
    /// `bootstrap.servers`. The variables are read now, not when the consumer is created.
    ///
    /// Every setting can be set in this way, except `log_level`, which is the only one with `_` in its
    /// name. The driver sets it to the level of the program's `tracing` subscriber.
    ///
    /// Choose a prefix that nothing else uses, because [`Consumer::new`](crate::Consumer::new) refuses
    /// every variable that is no setting. The prefix `KAFKA_` is a bad one: in Kubernetes, a service
    /// with the name `kafka` adds variables such as `KAFKA_SERVICE_HOST` to each container, and the
    /// tools of Kafka read `KAFKA_OPTS`.
    ///
    /// # Errors
    /// Fails if the value of one of these variables is not valid Unicode. Unknown names, invalid values
    /// and missing settings are reported by [`Consumer::new`](crate::Consumer::new), with the name of
    /// the variable.
    pub fn from_env(prefix: &str) -> Result<Self, ConfigError> {
        Self::from_variables(prefix, std::env::vars_os())
    }

    fn from_variables(
        prefix: &str,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut client = ClientSettings::default();
        let mut read = HashMap::new();
        for (variable, value) in variables {
            let Ok(variable) = variable.into_string() else { continue };
            let Some(name) = variable.strip_prefix(prefix) else { continue };
            let name = name.to_lowercase().replace('_', ".");
            // The value may be a secret.
            let value = value.into_string().map_err(|_| {
                ConfigError::new(format!("the value of `{variable}` is not valid Unicode"))
            })?;
            client.set(&*name, value);
            read.insert(name, variable);
        }
        let environment = Environment { prefix: prefix.to_owned(), variables: read };
        Ok(Self { client, environment: Some(environment) })
    }

    /// Sets a librdkafka setting. It overrides the driver's default.
    /// [`Consumer::new`](crate::Consumer::new) refuses unknown names.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        if let Some(environment) = &mut self.environment {
            environment.variables.remove(&name);
        }
        self.client.set(name, value);
        self
    }

    /// Returns the value of a setting, or `None` if this configuration does not set it. The defaults of
    /// the driver and of librdkafka are not included.
    ///
    /// ```
    /// use campanile_kafka::ConsumerConfig;
    ///
    /// let config = ConsumerConfig::new("localhost:9092", "billing");
    /// // a namespace is named after the group and the kind of event
    /// let namespace = format!("{}.payments", config.get("group.id").unwrap_or_default());
    /// assert_eq!(namespace, "billing.payments");
    /// ```
    pub fn get(&self, name: &str) -> Option<&str> {
        self.client.get(name)
    }

    /// Sets a function that obtains OAuth tokens, and `sasl.mechanisms` to `OAUTHBEARER`. This is how
    /// clients authenticate to Amazon MSK with IAM, to Azure Event Hubs, and to Confluent Cloud, among
    /// others. Requires this crate's feature `tls` (`kafka-tls` of the crate `campanile`), because librdkafka
    /// knows the mechanism only if it is built with OpenSSL. Set `security.protocol` to `sasl_ssl`.
    ///
    /// ```
    /// use campanile_kafka::{ConsumerConfig, OauthToken};
    /// use std::time::{Duration, SystemTime};
    ///
    /// # fn request_token() -> Result<(String, Duration), std::io::Error> { unimplemented!() }
    /// let config = ConsumerConfig::new("localhost:9098", "billing")
    ///     .set("security.protocol", "sasl_ssl")
    ///     .with_oauth_token(|| {
    ///         // asks your provider of tokens, and may block
    ///         let (token, valid_for) = request_token()?;
    ///         Ok(OauthToken::new(token, SystemTime::now() + valid_for))
    ///     });
    /// ```
    ///
    /// The token is used by the consumer and by all producers and other clients that are made with this
    /// configuration: for dead letters, retry topics, transactions, and a
    /// [`Publisher`](crate::Publisher). They share one token, so the function is called once per token
    /// and not once per client.
    ///
    /// The function runs on a thread of its own, where it may block. To run asynchronous code, call
    /// [`Handle::block_on`](tokio::runtime::Handle::block_on) of the program's runtime. It is called
    /// again when a client needs a token and half of the lifetime of the last token is over; until it
    /// returns, clients use that token. An error or a panic is logged at ERROR, and the function is
    /// called again within about 10 s. Connections that are open are not closed by an expired token
    /// unless the brokers do so.
    ///
    /// For OpenID Connect with a client secret, no function is needed: see librdkafka's
    /// `sasl.oauthbearer.method`.
    pub fn with_oauth_token(
        mut self,
        obtain: impl Fn() -> Result<OauthToken, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.client.set("sasl.mechanisms", "OAUTHBEARER");
        self.client.tokens = Some(Arc::new(OauthTokens::new(obtain)));
        self
    }

    /// Returns the settings of the consumer's client, with the driver's defaults, for a librdkafka
    /// client of your own. A function set by [`with_oauth_token`](Self::with_oauth_token) is not part
    /// of them.
    ///
    /// # Errors
    /// Fails as [`Consumer::new`](crate::Consumer::new) does.
    pub fn client_config(&self) -> Result<ClientConfig, ConfigError> {
        Ok((*self.clone().checked()?.client).clone())
    }

    /// Adds the defaults, and refuses contradictory settings.
    pub(crate) fn checked(mut self) -> Result<CheckedConfig, ConfigError> {
        let brokers = self.required("bootstrap.servers")?;
        let group = self.required("group.id")?;
        self.force_off()?;
        self.normalize_compared();
        self.add_defaults();
        let native =
            self.client.create_native_config().map_err(|error| self.config_error(error))?;
        let poll_interval = native.get("max.poll.interval.ms").map_err(config_error)?;
        let max_poll_interval_ms = poll_interval.parse().map_err(|_| {
            ConfigError::new(format!("max.poll.interval.ms is not a number: {poll_interval}"))
        })?;
        self.client.set_log_level(log_level());
        Ok(CheckedConfig { client: self.client, brokers, group, max_poll_interval_ms })
    }

    /// Reads a required setting, under any of its names.
    fn required(&self, name: &str) -> Result<String, ConfigError> {
        match self.client.value_of(name).map(str::trim) {
            Some(value) if !value.is_empty() => Ok(value.to_owned()),
            _ => Err(ConfigError::new(format!("{} must be set", self.label(name)))),
        }
    }

    /// Returns how errors name a setting: with the variable by which the user sets it, or would set it.
    fn label(&self, name: &str) -> String {
        let Some(Environment { prefix, variables }) = &self.environment else {
            return format!("`{name}`");
        };
        match variables.get(name) {
            Some(variable) => format!("`{variable}` (`{name}`)"),
            None if self.client.get(name).is_some() => format!("`{name}`"),
            None => format!("`{prefix}{}` (`{name}`)", name.to_uppercase().replace('.', "_")),
        }
    }

    /// Converts librdkafka's error about a setting, and names the variable from which the setting was
    /// read.
    fn config_error(&self, error: KafkaError) -> ConfigError {
        let variable = match (&error, &self.environment) {
            (KafkaError::ClientConfig(_, _, name, _), Some(environment)) => {
                environment.variables.get(name)
            }
            _ => None,
        };
        let error = config_error(error);
        match variable {
            Some(variable) => ConfigError::new(format!("`{variable}`: {error}")),
            None => error,
        }
    }

    fn force_off(&mut self) -> Result<(), ConfigError> {
        for &name in FORCED_OFF {
            if let Some(value) = self.client.get(name)
                && !matches!(value, "false" | "f" | "0")
            {
                return Err(ConfigError::new(format!(
                    "{} is `{value}`, but must be `false` or left out: the driver commits offsets \
                     once their records are finished",
                    self.label(name)
                )));
            }
            self.client.set(name, "false");
        }
        Ok(())
    }

    /// Normalizes the values that are compared. librdkafka ignores their case and spaces before them:
    /// an `Earliest` that is not recognized would begin at the end of a partition.
    fn normalize_compared(&mut self) {
        for &name in COMPARED {
            if let Some(value) = self.client.get(name) {
                let normalized = value.trim_start().to_ascii_lowercase();
                self.client.set(name, normalized);
            }
        }
    }

    fn add_defaults(&mut self) {
        for &(name, value) in DEFAULTS {
            self.client.set_default(name, value);
        }
        if MESSAGE_SIZES.iter().all(|name| self.client.get(name).is_none()) {
            let (name, value) = FETCH_MAX_BYTES;
            self.client.set_default(name, value);
        }
        // In the newer protocol the broker assigns partitions, and refuses a strategy of the client.
        if self.client.get("group.protocol").is_none_or(|protocol| protocol == "classic") {
            self.client.set_default("partition.assignment.strategy", "cooperative-sticky");
        }
    }
}

/// Collects pairs of a setting's name and its value. Of several values for one name, the last one wins.
impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for ConsumerConfig {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(settings: I) -> Self {
        let config = Self::from(ClientConfig::new());
        settings.into_iter().fold(config, |config, (name, value)| config.set(name, value))
    }
}

impl From<ClientConfig> for ConsumerConfig {
    fn from(config: ClientConfig) -> Self {
        Self { client: config.into(), environment: None }
    }
}

/// Converts the settings, for clients of your own. The driver's defaults and a function that obtains
/// OAuth tokens are not included.
impl From<ConsumerConfig> for ClientConfig {
    fn from(config: ConsumerConfig) -> Self {
        (*config.client).clone()
    }
}

/// Shows the brokers and the group only: other settings may be secrets.
impl fmt::Debug for ConsumerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerConfig")
            .field("bootstrap.servers", &self.client.get("bootstrap.servers"))
            .field("group.id", &self.client.get("group.id"))
            .finish_non_exhaustive()
    }
}

/// Validated settings, as far as librdkafka can validate them without a client.
pub(crate) struct CheckedConfig {
    pub(crate) client: ClientSettings,
    pub(crate) brokers: String,
    pub(crate) group: String,
    pub(crate) max_poll_interval_ms: u64,
}

/// Converts librdkafka's error about a setting.
pub(crate) fn config_error(error: KafkaError) -> ConfigError {
    let mut text = match error {
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, name, _) => {
            format!("librdkafka has no setting `{name}`")
        }
        // The value may be a secret.
        KafkaError::ClientConfig(_, description, name, _) => format!("`{name}`: {description}"),
        error => error.to_string(),
    };
    if let Some(advice) = missing_feature(&text) {
        text.push_str("; ");
        text.push_str(advice);
    }
    ConfigError::new(text)
}

/// Finds the feature to enable, if librdkafka's error says that it was built without a library.
pub(crate) fn missing_feature(error: &str) -> Option<&'static str> {
    // Without OpenSSL, SCRAM is missing as well as TLS.
    let openssl = ["OpenSSL not available", "openssl support"];
    // In a record batch, 4 is the codec of zstd.
    let zstd = ["libzstd not available", "Decompression (codec 0x4)"];
    if openssl.iter().any(|text| error.contains(text)) {
        Some("enable the feature `kafka-tls` of `campanile`, or `tls` of `campanile-kafka`")
    } else if zstd.iter().any(|text| error.contains(text)) {
        Some("enable the feature `kafka-zstd` of `campanile`, or `zstd` of `campanile-kafka`")
    } else {
        None
    }
}

/// Reads `auto.offset.reset`, unless a group without an offset begins at the start of a partition.
pub(crate) fn non_earliest_reset(client: &ClientConfig) -> Option<&str> {
    client
        .get("auto.offset.reset")
        .filter(|reset| !matches!(*reset, "earliest" | "smallest" | "beginning"))
}

/// Reads the offset at which a partition without a committed offset begins: [`Offset::Invalid`] if that
/// is an error.
pub(crate) fn reset_offset(client: &ClientConfig) -> Offset {
    match non_earliest_reset(client) {
        None => Offset::Beginning,
        Some("error") => Offset::Invalid,
        Some(_) => Offset::End,
    }
}

/// Checks whether the consumer uses the group protocol of KIP-848.
pub(crate) fn uses_newer_protocol(client: &ClientConfig) -> bool {
    client.get("group.protocol") == Some("consumer")
}

/// Maps the subscriber's log level to librdkafka's.
fn log_level() -> RDKafkaLogLevel {
    match LevelFilter::current() {
        LevelFilter::OFF | LevelFilter::ERROR => RDKafkaLogLevel::Error,
        LevelFilter::WARN => RDKafkaLogLevel::Warning,
        LevelFilter::INFO => RDKafkaLogLevel::Info,
        _ => RDKafkaLogLevel::Debug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: ConsumerConfig) -> String {
        config.checked().err().unwrap().to_string()
    }

    fn config() -> ConsumerConfig {
        ConsumerConfig::new("localhost:9092", "g")
    }

    #[test]
    fn config_without_brokers_or_group_is_refused() {
        assert_eq!(refused(ConsumerConfig::new("", "g")), "`bootstrap.servers` must be set");
        assert_eq!(refused(ConsumerConfig::new("b:1", " ")), "`group.id` must be set");
        assert_eq!(refused(ClientConfig::new().into()), "`bootstrap.servers` must be set");
    }

    #[test]
    fn automatic_commits_cannot_be_enabled() {
        let client = config().checked().unwrap().client;
        for &name in FORCED_OFF {
            assert_eq!(client.get(name), Some("false"));
            assert!(config().set(name, "false").checked().is_ok());
            let text = refused(config().set(name, "true"));
            assert!(text.contains(name) && text.contains("driver"), "{text}");
        }
    }

    #[test]
    fn unknown_setting_is_refused_without_showing_its_value() {
        assert!(refused(config().set("group.idd", "x")).contains("group.idd"));
        let text = refused(config().set("session.timeout.ms", "s3cret"));
        assert!(text.contains("session.timeout.ms") && !text.contains("s3cret"), "{text}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn setting_that_needs_tls_is_refused_with_the_feature() {
        for (name, value) in [
            ("security.protocol", "SSL"),
            ("security.protocol", "sasl_ssl"),
            ("ssl.ca.location", "/ca.pem"),
        ] {
            let text = refused(config().set(name, value));
            assert!(text.contains(name) && text.contains("`kafka-tls` of `campanile`"), "{text}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn scram_without_tls_is_refused_with_the_feature() {
        let scram = config()
            .set("security.protocol", "sasl_plaintext")
            .set("sasl.mechanism", "SCRAM-SHA-512")
            .set("sasl.username", "billing")
            .set("sasl.password", "s3cret");
        let client = scram.checked().unwrap().client;
        let error = client.create::<rdkafka::consumer::BaseConsumer>().err().unwrap();
        let text = config_error(error).to_string();
        assert!(text.contains("`kafka-tls` of `campanile`"), "{text}");
    }

    #[cfg(not(feature = "zstd"))]
    #[test]
    fn setting_that_needs_zstd_is_refused_with_the_feature() {
        let text = refused(config().set("compression.type", "zstd"));
        assert!(text.contains("`kafka-zstd` of `campanile`"), "{text}");
    }

    #[test]
    fn pairs_become_settings_and_the_last_value_wins() {
        let pairs = [("bootstrap.servers", "a:1"), ("group.id", "g"), ("bootstrap.servers", "b:1")];
        let checked = pairs.into_iter().collect::<ConsumerConfig>().checked().unwrap();
        assert_eq!((&*checked.brokers, &*checked.group), ("b:1", "g"));
        let unknown = pairs.into_iter().chain([("group.idd", "x")]).collect();
        assert!(refused(unknown).contains("group.idd"));
    }

    #[test]
    fn variables_with_the_prefix_become_settings() {
        let variables = [
            ("APP_BOOTSTRAP_SERVERS", "b:1"),
            ("APP_GROUP_ID", "g"),
            ("APP_MAX_POLL_INTERVAL_MS", "60000"),
            ("GROUP_ID", "other"),
            ("OTHER_APP_GROUP_ID", "other"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let checked = ConsumerConfig::from_variables("APP_", variables).unwrap().checked().unwrap();
        assert_eq!((&*checked.brokers, &*checked.group), ("b:1", "g"));
        assert_eq!(checked.max_poll_interval_ms, 60_000);
    }

    /// Reads these variables, and those that are required.
    fn config_from_variables(variables: &[(&str, &str)]) -> ConsumerConfig {
        let required = [("APP_BOOTSTRAP_SERVERS", "b:1"), ("APP_GROUP_ID", "g")];
        let variables = required.iter().chain(variables);
        let variables = variables.map(|&(name, value)| (name.into(), value.into()));
        ConsumerConfig::from_variables("APP_", variables).unwrap()
    }

    #[test]
    fn variable_that_is_no_setting_is_refused_by_name() {
        let text = refused(config_from_variables(&[("APP_GRUOP", "x")]));
        assert_eq!(text, "`APP_GRUOP`: librdkafka has no setting `gruop`");
    }

    #[test]
    fn variable_with_an_invalid_value_is_refused_by_name() {
        let text = refused(config_from_variables(&[("APP_SESSION_TIMEOUT_MS", "s3cret")]));
        assert!(text.starts_with("`APP_SESSION_TIMEOUT_MS`: `session.timeout.ms`: "), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
        let text = refused(config_from_variables(&[("APP_ENABLE_AUTO_COMMIT", "true")]));
        assert!(text.starts_with("`APP_ENABLE_AUTO_COMMIT` (`enable.auto.commit`) is"), "{text}");
    }

    #[test]
    fn missing_variable_is_named() {
        let none = ConsumerConfig::from_variables("APP_", []).unwrap();
        let text = refused(none.clone());
        assert_eq!(text, "`APP_BOOTSTRAP_SERVERS` (`bootstrap.servers`) must be set");
        let text = refused(none.set("bootstrap.servers", "b:1"));
        assert_eq!(text, "`APP_GROUP_ID` (`group.id`) must be set");
        let text = refused(config_from_variables(&[("APP_GROUP_ID", " ")]));
        assert_eq!(text, "`APP_GROUP_ID` (`group.id`) must be set");
    }

    #[test]
    fn setting_that_replaces_a_variable_is_refused_without_it() {
        let config = config_from_variables(&[("APP_GRUOP", "x")]).set("gruop", "y");
        assert_eq!(refused(config), "librdkafka has no setting `gruop`");
        let config = config_from_variables(&[]).set("group.id", "");
        assert_eq!(refused(config), "`group.id` must be set");
    }

    #[test]
    fn setting_is_returned_if_it_is_set() {
        let config = config_from_variables(&[]).set("group.id", "h");
        assert_eq!(config.get("bootstrap.servers"), Some("b:1"));
        assert_eq!(config.get("group.id"), Some("h"));
        assert_eq!(config.get("auto.offset.reset"), None);
    }

    #[cfg(unix)]
    #[test]
    fn variable_that_is_not_unicode_is_refused_by_name() {
        use std::os::unix::ffi::OsStringExt;
        let invalid = || OsString::from_vec(vec![0xff]);
        let other = [("OTHER".into(), invalid()), (invalid(), "x".into())];
        assert!(ConsumerConfig::from_variables("APP_", other).is_ok());
        let error = ConsumerConfig::from_variables("APP_", [("APP_GROUP_ID".into(), invalid())]);
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "the value of `APP_GROUP_ID` is not valid Unicode");
    }

    #[test]
    fn environment_is_read() {
        // Cargo sets `CARGO_PKG_NAME` for tests.
        let config = ConsumerConfig::from_env("CARGO_PKG_").unwrap();
        assert_eq!(config.get("name"), Some("campanile-kafka"));
    }

    #[test]
    fn user_settings_override_defaults() {
        let client = config().set("fetch.wait.max.ms", "500").checked().unwrap().client;
        assert_eq!(client.get("fetch.wait.max.ms"), Some("500"));
        assert_eq!(client.get("partition.assignment.strategy"), Some("cooperative-sticky"));
    }

    #[test]
    fn newer_protocol_has_no_assignment_strategy() {
        let client = config().set("group.protocol", "consumer").checked().unwrap().client;
        assert_eq!(client.get("partition.assignment.strategy"), None);
    }

    #[test]
    fn values_are_compared_as_librdkafka_reads_them() {
        let client = |name, value| config().set(name, value).checked().unwrap().client;
        for value in ["EARLIEST", " Earliest", "Smallest", "\tBEGINNING"] {
            assert_eq!(reset_offset(&client("auto.offset.reset", value)), Offset::Beginning);
        }
        assert_eq!(reset_offset(&client("auto.offset.reset", " Latest")), Offset::End);
        assert_eq!(reset_offset(&client("auto.offset.reset", "ERROR")), Offset::Invalid);
        let assignor = |protocol| {
            let client = client("group.protocol", protocol);
            client.get("partition.assignment.strategy").map(str::to_owned)
        };
        assert_eq!(assignor("CLASSIC").as_deref(), Some("cooperative-sticky"));
        assert_eq!(assignor(" Consumer"), None);
        assert!(uses_newer_protocol(&client("group.protocol", " Consumer")));
    }

    #[test]
    fn larger_message_size_is_accepted_by_librdkafka() {
        let checked = config().set("message.max.bytes", "10000000").checked().unwrap();
        checked.client.create::<rdkafka::consumer::BaseConsumer>().unwrap();
    }

    #[test]
    fn debug_shows_no_secrets() {
        let text = format!("{:?}", config().set("sasl.password", "s3cret"));
        assert!(!text.contains("s3cret"), "{text}");
    }
}
