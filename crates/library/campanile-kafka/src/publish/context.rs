//! librdkafka's callbacks about publications.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;
use tokio::sync::oneshot;

use crate::log::LogLimit;
use crate::oauth::{self, OauthTokens, TOKEN_TIMEOUT};

/// Sends the acknowledgement to the caller that waits for it.
pub(super) type AckSender = oneshot::Sender<Result<(), KafkaError>>;

/// Forwards acknowledgements to the callers that wait for them.
pub(super) struct Acknowledgements {
    /// The last error of a connection.
    reason: Mutex<Option<String>>,
    pub(super) log_limit: LogLimit,
    tokens: Option<Arc<OauthTokens>>,
}

impl Acknowledgements {
    pub(super) fn new(tokens: Option<Arc<OauthTokens>>, log_limit: LogLimit) -> Self {
        Self { reason: Mutex::default(), log_limit, tokens }
    }

    pub(super) fn take_reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ProducerContext for Acknowledgements {
    type DeliveryOpaque = Box<AckSender>;

    fn delivery(&self, result: &DeliveryResult<'_>, sender: Box<AckSender>) {
        let result = match result {
            Ok(_) => {
                // Errors of the connections before this acknowledgement are resolved.
                self.take_reason();
                Ok(())
            }
            Err((error, _)) => Err(error.clone()),
        };
        // Fails if the publication was dropped in the meantime.
        let _ = sender.send(result);
    }
}

impl ClientContext for Acknowledgements {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        // The producer's own thread runs this.
        oauth::answer(self.tokens.as_ref(), TOKEN_TIMEOUT)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        crate::log::log(&self.log_limit, level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "error in the client of the producer");
        let text = if reason.is_empty() { error.to_string() } else { reason.to_owned() };
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        crate::log::statistics(statistics);
    }
}
