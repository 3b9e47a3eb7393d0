//! The settings that all Kafka clients of a consumer share.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rdkafka::ClientConfig;

use crate::oauth::OauthTokens;

/// The settings of a client, and the tokens by which it authenticates.
#[derive(Clone, Default)]
pub(crate) struct ClientSettings {
    settings: ClientConfig,
    pub(crate) tokens: Option<Arc<OauthTokens>>,
}

impl ClientSettings {
    /// The addresses of the bootstrap servers.
    pub(crate) fn brokers(&self) -> Option<&str> {
        self.get("bootstrap.servers").or(self.get("metadata.broker.list"))
    }
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
