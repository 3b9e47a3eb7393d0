//! The options of several verbs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use campanile_admin::entries::{EntryQuery, parse_digest};
use campanile_admin::explain::KeySource;
use campanile_admin::{AdminError, AnyStore, StoreConfig};
use campanile_core::{ConfigError, IdempotencyKey, Namespace, State, StoreKey};
use campanile_kafka::ConsumerConfig;
use clap::{Args, ValueEnum, value_parser};
use rdkafka::ClientConfig;

/// The prefix of the environment variables that are settings of librdkafka.
const KAFKA_PREFIX: &str = "CAMPANILE_KAFKA_";

const BROKERS: &str = "CAMPANILE_BROKERS";

/// Parts of the names of settings that are secrets, or contain them.
const SECRETS: &[&str] = &["password", "secret", "jaas", "pem"];

/// How long a batch of commands of the store may take: longer than in a consumer, because no lock
/// depends on it, and the store may be slow or far away.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// How to reach Kafka.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kafka")]
pub(crate) struct KafkaOptions {
    /// Addresses of brokers, separated by commas [env: CAMPANILE_BROKERS]
    #[arg(long, value_name = "HOST:PORT")]
    brokers: Option<String>,
    /// A setting of librdkafka, such as security.protocol=sasl_ssl. May be repeated. Secrets are
    /// refused here, because other users can read the arguments of a process: use --kafka-file or the
    /// environment, where CAMPANILE_KAFKA_SASL_PASSWORD sets sasl.password
    #[arg(long = "kafka", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// A file with a setting NAME=VALUE on each line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    kafka_file: Option<PathBuf>,
}

impl KafkaOptions {
    /// Merges the settings. Those of the environment have the lowest precedence, and the options the
    /// highest.
    pub(crate) fn config(&self) -> Result<ClientConfig, AdminError> {
        let mut config: ClientConfig = ConsumerConfig::from_env(KAFKA_PREFIX)?.into();
        if let Ok(brokers) = std::env::var(BROKERS) {
            config.set("bootstrap.servers", brokers);
        }
        if let Some(path) = &self.kafka_file {
            for (number, line) in (1..).zip(read(path)?.lines()) {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                // The line may contain a secret.
                let (name, value) = line.split_once('=').ok_or_else(|| {
                    ConfigError::new(format!("{}:{number}: expected NAME=VALUE", path.display()))
                })?;
                config.set(name.trim(), value.trim());
            }
        }
        if let Some(brokers) = &self.brokers {
            config.set("bootstrap.servers", brokers);
        }
        for setting in &self.settings {
            // Not by clap, because its error contains the text.
            let (name, value) = parse_pair(setting)
                .map_err(|error| ConfigError::new(format!("a value of --kafka: {error}")))?;
            if SECRETS.iter().any(|secret| name.contains(secret)) {
                let variable = name.to_uppercase().replace('.', "_");
                return Err(ConfigError::new(format!(
                    "`{name}` may be a secret, and other users can read the arguments of a process: \
                     set {KAFKA_PREFIX}{variable}, or use --kafka-file"
                ))
                .into());
            }
            config.set(name, value);
        }
        match config.get("bootstrap.servers") {
            Some(brokers) if !brokers.trim().is_empty() => {
                // Before a store is waited for. Each client has its own group.
                ConsumerConfig::from(config.clone())
                    .set("group.id", "campanile")
                    .client_config()?;
                Ok(config)
            }
            _ => {
                Err(ConfigError::new(format!("no brokers: use --brokers or set {BROKERS}")).into())
            }
        }
    }
}

/// How to reach the store.
#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreOptions {
    /// The URL of the store: redis[s]://HOST:PORT, redis[s]+sentinel://HOST:PORT,…/NAME,
    /// redis[s]+cluster://HOST:PORT,… or postgres://HOST/DATABASE. A URL with a password is refused
    /// here, because other users can read the arguments of a process: use --store-file or the
    /// environment
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A file that contains the URL. Without either option, the URL is that in CAMPANILE_STORE
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    store_file: Option<PathBuf>,
    /// The number of buckets of each namespace in Redis, if the consumers set another than the
    /// default
    #[arg(long, value_name = "NUMBER")]
    buckets: Option<u16>,
    #[cfg(feature = "store-tls")]
    #[command(flatten)]
    tls: TlsOptions,
}

/// The certificates for TLS to the store. Their variables are read when they are needed, because `doctor`
/// ignores them with a file.
#[cfg(feature = "store-tls")]
#[derive(Debug, Args)]
struct TlsOptions {
    /// A PEM file with the only certificate authorities to trust for the store. Default: those of the
    /// system [env: CAMPANILE_STORE_CA]
    #[arg(long, value_name = "FILE")]
    store_ca: Option<PathBuf>,
    /// A PEM file with the client certificate for the store, and its chain
    /// [env: CAMPANILE_STORE_CERTIFICATE]
    #[arg(long, value_name = "FILE")]
    store_certificate: Option<PathBuf>,
    /// A PEM file with the private key of the client certificate [env: CAMPANILE_STORE_KEY]
    #[arg(long, value_name = "FILE")]
    store_key: Option<PathBuf>,
}

#[cfg(feature = "store-tls")]
impl TlsOptions {
    fn apply(&self, mut config: StoreConfig) -> Result<StoreConfig, ConfigError> {
        let path = |option: &Option<PathBuf>, variable| {
            option.clone().or_else(|| std::env::var_os(variable).map(PathBuf::from))
        };
        if let Some(path) = path(&self.store_ca, "CAMPANILE_STORE_CA") {
            config = config.with_ca(read(&path)?);
        }
        let certificate = path(&self.store_certificate, "CAMPANILE_STORE_CERTIFICATE");
        match (certificate, path(&self.store_key, "CAMPANILE_STORE_KEY")) {
            (Some(certificate), Some(key)) => {
                Ok(config.with_client_certificate(read(&certificate)?, read(&key)?))
            }
            (None, None) => Ok(config),
            _ => Err(ConfigError::new("--store-certificate and --store-key need each other")),
        }
    }
}

impl StoreOptions {
    /// Connects for a verb that reads entries before it changes any.
    pub(crate) async fn connect(&self) -> Result<AnyStore, AdminError> {
        self.config()?.with_command_timeout(COMMAND_TIMEOUT).connect_to_inspect().await
    }

    /// Returns the URL of the store, which may contain a password.
    pub(crate) fn url(&self) -> Result<String, ConfigError> {
        const VARIABLE: &str = "CAMPANILE_STORE";
        let url = match (&self.store, &self.store_file) {
            (Some(url), _) if has_password(url) => {
                return Err(ConfigError::new(format!(
                    "the URL of --store has a password, and other users can read the arguments of a \
                     process: set {VARIABLE}, or use --store-file"
                )));
            }
            (Some(url), _) => url.clone(),
            (None, Some(path)) => read(path)?,
            (None, None) => std::env::var(VARIABLE).map_err(|_| {
                ConfigError::new(format!(
                    "no store: use --store or --store-file, or set {VARIABLE}"
                ))
            })?,
        };
        Ok(url.trim().to_owned())
    }

    pub(crate) fn config(&self) -> Result<StoreConfig, AdminError> {
        let config: StoreConfig = self.url()?.parse()?;
        #[cfg(feature = "store-tls")]
        let config = self.tls.apply(config)?;
        Ok(match (config, self.buckets) {
            (StoreConfig::Redis(config), Some(buckets)) => {
                StoreConfig::Redis(config.with_buckets(buckets))
            }
            (config, _) => config,
        })
    }
}

fn has_password(url: &str) -> bool {
    let authority = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    let is_in_query = ["pass=", "password="].iter().any(|name| url.contains(name));
    is_in_query || authority.is_some_and(|(authority, _)| authority.contains(':'))
}

/// Which namespace.
#[derive(Debug, Args)]
pub(crate) struct NamespaceOption {
    /// The namespace of the layer
    #[arg(long, env = "CAMPANILE_NAMESPACE", value_parser = parse_namespace)]
    pub(crate) namespace: Namespace,
}

/// Which entries, by their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateOption {
    Failed,
    Retrying,
    Processing,
    Completed,
    Stuck,
}

impl StateOption {
    /// Selects the entries in this state, in addition to those that are selected by their state already.
    pub(crate) fn select(self, query: EntryQuery) -> EntryQuery {
        match self {
            Self::Failed => query.with_state(State::Failed),
            Self::Retrying => query.with_state(State::Retrying),
            Self::Processing => query.with_state(State::Processing),
            Self::Completed => query.with_state(State::Completed),
            Self::Stuck => query.with_stuck(),
        }
    }
}

/// How fast entries are read.
#[derive(Debug, Args)]
pub(crate) struct ScanOptions {
    /// The largest share of the store's time that reading takes, so that the application is not slowed
    /// down: after each slice, the command waits in proportion. With 100, it does not wait
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = value_parser!(u8).range(1..=100))]
    pub(crate) max_share: u8,
}

/// Which key.
#[derive(Debug, Args)]
pub(crate) struct KeyOptions {
    /// The idempotency key
    #[arg(value_name = "KEY", required_unless_present = "digest")]
    key: Option<String>,
    /// The digest of the key, as lists show it, in place of the key
    #[arg(long, value_name = "HEX", conflicts_with = "key", value_parser = parse_digest)]
    digest: Option<[u8; 16]>,
    #[command(flatten)]
    namespace: NamespaceOption,
}

impl KeyOptions {
    /// Returns the key in the store, and the idempotency key unless only its digest is given.
    pub(crate) fn keys(&self) -> Result<(StoreKey, Option<IdempotencyKey>), ConfigError> {
        let namespace = self.namespace.namespace.clone();
        if let Some(digest) = self.digest {
            return Ok((StoreKey::from_digest(namespace, digest), None));
        }
        let key = self.key.clone().and_then(IdempotencyKey::new);
        let key = key.ok_or_else(|| ConfigError::new("the key is empty"))?;
        Ok((StoreKey::new(namespace, &key), Some(key)))
    }
}

/// Where the key is. The variables are not read by clap, which would refuse them together with another
/// option.
#[derive(Debug, Args)]
#[command(next_help_heading = "Key of the record")]
#[group(multiple = false)]
pub(crate) struct KeySourceOptions {
    /// The key is in this header [env: CAMPANILE_KEY_HEADER] [default: idempotency-key]
    #[arg(long, value_name = "NAME")]
    key_header: Option<String>,
    /// The key is a string or an integer in a payload of JSON, at this pointer, such as /payment/id
    /// [env: CAMPANILE_KEY_POINTER]
    #[arg(long, value_name = "POINTER", value_parser = parse_pointer)]
    key_pointer: Option<String>,
    /// The key is the topic, partition and offset
    #[arg(long)]
    key_coordinates: bool,
    /// The key is Kafka's key of the record
    #[arg(long)]
    key_record: bool,
}

impl KeySourceOptions {
    /// Returns the source that an option names, or else a variable.
    pub(crate) fn source(self) -> Result<KeySource, ConfigError> {
        const HEADER: &str = "CAMPANILE_KEY_HEADER";
        const POINTER: &str = "CAMPANILE_KEY_POINTER";
        match self {
            Self { key_coordinates: true, .. } => return Ok(KeySource::Coordinates),
            Self { key_record: true, .. } => return Ok(KeySource::RecordKey),
            Self { key_header: Some(name), .. } => return Ok(KeySource::Header(name.into())),
            Self { key_pointer: Some(pointer), .. } => {
                return Ok(KeySource::JsonPointer(pointer.into()));
            }
            _ => {}
        }
        match (std::env::var(HEADER).ok(), std::env::var(POINTER).ok()) {
            (Some(_), Some(_)) => {
                Err(ConfigError::new(format!("{HEADER} and {POINTER} exclude each other")))
            }
            (Some(name), None) => Ok(KeySource::Header(name.into())),
            (None, Some(pointer)) => {
                let pointer = parse_pointer(&pointer);
                let pointer =
                    pointer.map_err(|error| ConfigError::new(format!("{POINTER}: {error}")))?;
                Ok(KeySource::JsonPointer(pointer.into()))
            }
            (None, None) => Ok(KeySource::default()),
        }
    }
}

fn parse_pointer(text: &str) -> Result<String, &'static str> {
    let is_pointer = text.starts_with('/');
    is_pointer.then(|| text.to_owned()).ok_or("a JSON pointer begins with /, such as /payment/id")
}

pub(crate) fn parse_namespace(name: &str) -> Result<Namespace, ConfigError> {
    Namespace::try_from(name)
}

/// Parses `NAME=VALUE`. The error does not contain the text, which may be a secret.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|error| ConfigError::new(format!("cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_in_a_url_is_detected() {
        for url in [
            "redis://:p@h",
            "redis://u:p@h:1",
            "redis+unix:///s?user=u&pass=p",
            "postgres://app@h/app?password=p",
            "postgres://h/app?user=a&password=p",
        ] {
            assert!(has_password(url), "{url}");
        }
        for url in ["redis://h:6379", "postgres://app@db:5432/app", "redis+cluster://a:1,b:2"] {
            assert!(!has_password(url), "{url}");
        }
    }
}
