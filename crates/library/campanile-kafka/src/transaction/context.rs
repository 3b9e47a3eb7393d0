//! librdkafka's callbacks about the delivery of outputs.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::ProducerContext;

use crate::log::LogLimit;
use crate::oauth::{self, OauthTokens, TOKEN_TIMEOUT};

/// An output that was refused.
pub(super) struct RefusedOutput {
    /// The index of the output's record in the batch.
    pub(super) record_index: usize,
    pub(super) topic: String,
    pub(super) error: KafkaError,
    /// Whether the output was refused by itself, and not together with others.
    pub(super) unbatched: bool,
}

/// Keeps the first output of a transaction that is refused.
pub(super) struct Deliveries {
    /// Whether each output is sent alone.
    pub(super) unbatched: bool,
    refused: Mutex<Option<RefusedOutput>>,
    pub(super) log_limit: LogLimit,
    tokens: Option<Arc<OauthTokens>>,
}

impl Deliveries {
    pub(super) fn new(
        unbatched: bool,
        tokens: Option<Arc<OauthTokens>>,
        log_limit: LogLimit,
    ) -> Self {
        Self { unbatched, refused: Mutex::default(), log_limit, tokens }
    }

    /// Records a refused output, unless another was refused before.
    pub(super) fn record_refusal(&self, refused: RefusedOutput) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(refused);
    }

    pub(super) fn take(&self) -> Option<RefusedOutput> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ProducerContext for Deliveries {
    /// The index of the record in its batch.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, record_index: usize) {
        let Err((error, message)) = result else {
            return;
        };
        // An abort purges outputs, which says nothing about the outputs themselves.
        if matches!(error.rdkafka_error_code(), Some(Code::PurgeQueue | Code::PurgeInflight)) {
            return;
        }
        let (topic, error) = (message.topic().to_owned(), error.clone());
        self.record_refusal(RefusedOutput {
            record_index,
            topic,
            error,
            unbatched: self.unbatched,
        });
    }
}

impl ClientContext for Deliveries {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        // The producer's own thread runs this.
        oauth::answer(self.tokens.as_ref(), TOKEN_TIMEOUT)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        crate::log::log(&self.log_limit, level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "error in the client of the transactional producer");
    }

    fn stats_raw(&self, statistics: &[u8]) {
        crate::log::statistics(statistics);
    }
}
