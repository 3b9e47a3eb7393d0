//! The settings that all Kafka clients of a consumer share.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rdkafka::ClientConfig;

use crate::oauth::OauthTokens;

/// The settings that librdkafka knows by two names. If both are set, either may take effect, because the
/// settings of a client have no order.
const ALIASES: &[[&str; 2]] = &[
    ["acks", "request.required.acks"],
    ["bootstrap.servers", "metadata.broker.list"],
    ["compression.type", "compression.codec"],
    ["linger.ms", "queue.buffering.max.ms"],
    ["max.in.flight.requests.per.connection", "max.in.flight"],
    ["max.partition.fetch.bytes", "fetch.message.max.bytes"],
    ["message.timeout.ms", "delivery.timeout.ms"],
    ["retries", "message.send.max.retries"],
    ["sasl.mechanisms", "sasl.mechanism"],
];

/// The settings of a client, and the tokens by which it authenticates.
#[derive(Clone, Default)]
pub(crate) struct ClientSettings {
    settings: ClientConfig,
    pub(crate) tokens: Option<Arc<OauthTokens>>,
}

impl ClientSettings {
    /// Sets a setting, in place of its value under its other name.
    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self {
        let name = name.into();
        if let Some(other) = other_name(&name) {
            self.settings.remove(other);
        }
        self.settings.set(name, value);
        self
    }

    /// Sets a setting that is set under none of its names.
    pub(crate) fn set_default(&mut self, name: &str, value: impl Into<String>) {
        if self.value_of(name).is_none() {
            self.settings.set(name, value);
        }
    }

    /// The value of a setting, under any of its names.
    pub(crate) fn value_of(&self, name: &str) -> Option<&str> {
        self.get(name).or_else(|| self.get(other_name(name)?))
    }

    /// The addresses of the bootstrap servers.
    pub(crate) fn brokers(&self) -> Option<&str> {
        self.value_of("bootstrap.servers")
    }
}

/// The first of the names of a setting.
pub(crate) fn main_name(name: &str) -> &str {
    ALIASES.iter().find(|[_, alias]| *alias == name).map_or(name, |[main, _]| main)
}

/// The other name of a setting that has two.
fn other_name(name: &str) -> Option<&'static str> {
    let &[main, alias] = ALIASES.iter().find(|names| names.contains(&name))?;
    Some(if name == main { alias } else { main })
}

impl From<ClientConfig> for ClientSettings {
    fn from(settings: ClientConfig) -> Self {
        Self { settings, tokens: None }
    }
}

impl Deref for ClientSettings {
    type Target = ClientConfig;

    fn deref(&self) -> &ClientConfig {
        &self.settings
    }
}

impl DerefMut for ClientSettings {
    fn deref_mut(&mut self) -> &mut ClientConfig {
        &mut self.settings
    }
}
