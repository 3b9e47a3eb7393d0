//! The request for the settings of topics.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, OwnedResourceSpecifier, ResourceSpecifier,
};
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use tokio::runtime::Handle;

use super::CheckedTopic;
use crate::client::ClientSettings;
use crate::kafka::set_oauth_token;
use crate::log::LogLimit;
use crate::oauth::TOKEN_TIMEOUT;

/// The timeout of the request. The brokers have just delivered a record, so they are reachable.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The brokers' answer for each topic.
pub(super) type DescribeResult = KafkaResult<Vec<Result<TopicConfig, Code>>>;

/// The settings of a topic. Not part of the public contract.
#[derive(Debug, Default)]
pub struct TopicConfig {
    topic: String,
    settings: HashMap<String, String>,
}

impl TopicConfig {
    pub(super) fn is_for(&self, topic: &str) -> bool {
        self.topic == topic
    }

    /// Returns the value of a setting.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }
}

impl From<ConfigResource> for TopicConfig {
    fn from(resource: ConfigResource) -> Self {
        let settings = resource.entries.into_iter();
        let settings = settings.filter_map(|entry| Some((entry.name, entry.value?))).collect();
        let topic = match resource.specifier {
            OwnedResourceSpecifier::Topic(topic) => topic,
            _ => String::new(),
        };
        Self { topic, settings }
    }
}

/// Sends the request from a thread of its own, on the caller's runtime. The answer goes to the
/// channel.
pub(super) fn spawn(
    client: ClientSettings,
    topics: Vec<CheckedTopic>,
    sender: SyncSender<DescribeResult>,
) -> io::Result<()> {
    let runtime = Handle::current();
    let request = move || {
        // The receiver may be gone.
        let _ = sender.send(runtime.block_on(describe(&client, &topics)));
    };
    std::thread::Builder::new().name("campanile-topics".into()).spawn(request).map(drop)
}

async fn describe(client: &ClientSettings, topics: &[CheckedTopic]) -> DescribeResult {
    let admin = AdminClient::from_config_and_context(client, LoggingContext::default())?;
    // This client does not ask for tokens.
    if let Some(tokens) = &client.tokens
        && let Some(token) = tokens.latest(TOKEN_TIMEOUT)
    {
        set_oauth_token(admin.inner(), token);
    }
    let topics: Vec<_> = topics.iter().map(|(topic, _)| ResourceSpecifier::Topic(topic)).collect();
    let options = AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT));
    let results = admin.describe_configs(&topics, &options).await?;
    Ok(results.into_iter().map(|result| result.map(TopicConfig::from)).collect())
}

/// Forwards librdkafka's log.
#[derive(Default)]
struct LoggingContext {
    log_limit: LogLimit,
}

impl ClientContext for LoggingContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        crate::log::log(&self.log_limit, level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "Kafka client error during the retention check");
    }
}

#[cfg(test)]
impl<'a> FromIterator<(&'a str, &'a str)> for TopicConfig {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(settings: I) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self { topic: String::new(), settings: settings.into_iter().map(owned).collect() }
    }
}
