//! The verb `doctor`.

use std::path::PathBuf;
use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::doctor::{Deployment, FindingKind, examine};
use campanile_core::ConfigError;
use clap::Args;

use crate::exit::Exit;
use crate::options::{KafkaOptions, StoreOptions, read};
use crate::print::{print, print_json};

/// Check a deployment: brokers, topics, group, store, and their settings against each other
///
/// Prints what was found, what could be lost or what fails, and the setting that fixes it. Nothing is
/// changed; what cannot be checked without a change is listed. A server that cannot be reached is a
/// finding like others.
///
/// The exit code is 0 if nothing can be lost and nothing fails, and 1 if there are such findings,
/// other than accepted ones. Advice does not count.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A TOML file with all settings of the deployment, in place of the options for the deployment,
    /// for Kafka and for the store
    ///
    /// Required are topics, and the tables kafka (settings of librdkafka), layer (the fields of
    /// IdempotencyConfig), and redis or postgres (the fields of RedisConfig or PgConfig). Optional are
    /// dead_letter_topics, retry_topics (a list of topic and delay), drain_timeout, grace_period,
    /// handler_timeout and has_inbox. ${NAME} in a string stands for an environment variable.
    #[arg(value_name = "FILE", conflicts_with_all = FILE_SETTINGS)]
    file: Option<PathBuf>,
    /// Accept the findings of this name: they are reported, but do not count. May be repeated
    #[arg(long, value_name = "FINDING")]
    accept: Vec<FindingKind>,
    /// Observe partitions with unprocessed records for this time, and find those in which no record is
    /// finished
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    observe: Option<Duration>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    deployment: DeploymentOptions,
    #[command(flatten)]
    kafka: KafkaOptions,
    #[command(flatten)]
    store: StoreOptions,
}

/// The options that a file replaces. Some of them have variables in the environment, which are not read
/// by clap: it would also refuse a variable together with the file.
const FILE_SETTINGS: &[&str] = &[
    "group",
    "topics",
    "dead_letter_topics",
    "namespace",
    "brokers",
    "settings",
    "kafka_file",
    "store",
    "store_file",
    "buckets",
    #[cfg(feature = "store-tls")]
    "store_ca",
    #[cfg(feature = "store-tls")]
    "store_certificate",
    #[cfg(feature = "store-tls")]
    "store_key",
];

const NAMESPACE: &str = "CAMPANILE_NAMESPACE";

/// What is deployed. All other settings have their defaults.
#[derive(Debug, Args)]
#[command(next_help_heading = "Deployment")]
struct DeploymentOptions {
    /// The consumer group
    #[arg(long, value_name = "GROUP", required_unless_present = "file")]
    group: Option<String>,
    /// A topic that the consumer subscribes to. May be repeated
    #[arg(long = "topic", value_name = "TOPIC", required_unless_present = "file")]
    topics: Vec<String>,
    /// A dead-letter topic. May be repeated
    #[arg(long = "dead-letter-topic", value_name = "TOPIC")]
    dead_letter_topics: Vec<String>,
    /// The namespace of the keys [env: CAMPANILE_NAMESPACE]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    let mut deployment = arguments.deployment()?;
    for kind in arguments.accept {
        deployment = deployment.accept(kind);
    }
    if let Some(observation) = arguments.observe {
        deployment = deployment.with_observation(observation);
    }
    let report = examine(&deployment).await;
    if arguments.json {
        print_json(&report)?;
    } else {
        print(&report)?;
    }
    Ok(if report.is_sound() { Exit::Done } else { Exit::Attention })
}

impl Arguments {
    fn deployment(&self) -> Result<Deployment, AdminError> {
        if let Some(file) = &self.file {
            let text = read(file)?;
            let invalid = |error| ConfigError::new(format!("{}: {error}", file.display()));
            return Ok(Deployment::from_toml(&text).map_err(invalid)?);
        }
        let DeploymentOptions { group, topics, dead_letter_topics, namespace } = &self.deployment;
        let mut consumer = self.kafka.config()?;
        consumer.set("group.id", group.as_deref().unwrap_or_default());
        let namespace = namespace.clone().or_else(|| std::env::var(NAMESPACE).ok());
        let namespace = namespace.ok_or_else(|| {
            ConfigError::new(format!("no namespace: use --namespace or set {NAMESPACE}"))
        })?;
        let deployment =
            Deployment::new(consumer, namespace, self.store.config()?).subscribe(topics);
        Ok(dead_letter_topics.iter().fold(deployment, Deployment::with_dead_letter_topic))
    }
}
