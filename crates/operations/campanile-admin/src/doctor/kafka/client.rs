//! A client that asks the brokers and changes nothing.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use campanile_core::Clock;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::metadata::Metadata;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::runtime::Handle;

use crate::kafka::{TopicConfig, is_unreadable};

/// The time limit of a request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit of the first fetch from a topic.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit of the first request, including its repetitions.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// The time limits of each repetition: short at first, because errors are seen after it, then longer,
/// because brokers may be far away.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(250);
const MAX_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// Why the brokers cannot be asked, with librdkafka's reason.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ConnectFailure {
    Unreachable(String),
    Authentication(String),
    Tls(String),
}

impl ConnectFailure {
    /// Classifies an error, unless another broker may still answer. `last`: the reason before it.
    fn classify(code: Code, reason: &str, last: Option<&str>) -> Option<Self> {
        match code {
            Code::Authentication | Code::SaslAuthenticationFailed => {
                Some(Self::Authentication(reason.to_owned()))
            }
            Code::SSL => Some(Self::Tls(reason.to_owned())),
            // The last broker's own error says why.
            Code::AllBrokersDown => Some(Self::Unreachable(last.unwrap_or(reason).to_owned())),
            _ => None,
        }
    }
}

pub(super) struct Client<'a> {
    /// Never subscribes, and so never joins its group.
    pub(super) consumer: BaseConsumer<Context>,
    admin: AdminClient<Context>,
    runtime: &'a Handle,
}

impl<'a> Client<'a> {
    /// Connects, and waits until a broker answers. Fails early if that is hopeless.
    pub(super) fn connect(
        config: &ClientConfig,
        runtime: &'a Handle,
        topic: &str,
    ) -> Result<Self, ConnectFailure> {
        let mut config = config.clone();
        config.set("enable.partition.eof", "true");
        // By default, the ends are those before the first open transaction, and the brokers do not show
        // the group's offsets while one of them is part of an open transaction.
        config.set("isolation.level", "read_uncommitted");
        let unusable = |error: KafkaError| ConnectFailure::Unreachable(error.to_string());
        let consumer = BaseConsumer::from_config_and_context(&config, Context::default());
        let consumer = consumer.map_err(unusable)?;
        let (clock, mut last) = (Clock::boot(), None);
        let start = clock.now();
        loop {
            let waited = clock.now() - start;
            let timeout = (waited / 2).clamp(MIN_ATTEMPT_TIMEOUT, MAX_ATTEMPT_TIMEOUT);
            let Err(error) = consumer.fetch_metadata(Some(topic), timeout) else { break };
            // The callback gets the errors.
            while consumer.poll(Duration::ZERO).is_some() {}
            for (code, reason) in consumer.context().take_errors() {
                if let Some(failure) = ConnectFailure::classify(code, &reason, last.as_deref()) {
                    return Err(failure);
                }
                last = Some(reason);
            }
            if waited >= CONNECT_TIMEOUT {
                return Err(ConnectFailure::Unreachable(last.unwrap_or(error.to_string())));
            }
        }
        // Settings of consumers only; librdkafka would log a warning for each.
        for name in ["group.id", "group.instance.id", "enable.partition.eof", "isolation.level"] {
            config.remove(name);
        }
        let admin = AdminClient::from_config_and_context(&config, Context::default());
        Ok(Self { consumer, admin: admin.map_err(unusable)?, runtime })
    }

    pub(super) fn metadata(&self, topic: &str) -> KafkaResult<Metadata> {
        self.consumer.fetch_metadata(Some(topic), REQUEST_TIMEOUT)
    }

    /// Checks whether there is a record at this offset or behind it, outside of the group. The markers of
    /// transactions are none.
    pub(super) fn has_record(
        &self,
        topic: &str,
        partition: i32,
        offset: Offset,
    ) -> KafkaResult<bool> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, offset)?;
        self.consumer.assign(&list)?;
        let result = self.fetch();
        // A failure to unassign has no effect, because the next partition is assigned instead.
        let _ = self.consumer.unassign();
        result
    }

    /// Waits for a record, for the end of the partition, or for an error.
    fn fetch(&self) -> KafkaResult<bool> {
        let clock = Clock::boot();
        let start = clock.now();
        let mut last = KafkaError::MessageConsumption(Code::RequestTimedOut);
        while clock.now() - start < FETCH_TIMEOUT {
            match self.consumer.poll(Duration::from_millis(100)) {
                None => {}
                Some(Ok(_)) => return Ok(true),
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(false),
                Some(Err(error)) => {
                    let is_denied =
                        error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed);
                    if is_denied || is_unreadable(&error) {
                        return Err(error);
                    }
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// Reads the settings of a topic or a broker. The error says why it cannot.
    pub(super) fn describe(&self, resource: &ResourceSpecifier<'_>) -> Result<TopicConfig, String> {
        let options = AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT));
        let described = self.runtime.block_on(self.admin.describe_configs([resource], &options));
        match described.map_err(|error| error.to_string())?.into_iter().next() {
            // rdkafka does not report that the brokers refuse it.
            Some(Ok(config)) if !config.entries.is_empty() => Ok(config.into()),
            Some(Err(code)) => Err(code.to_string()),
            _ => Err("the brokers returned no settings".to_owned()),
        }
    }
}

/// Collects errors instead of logging them.
#[derive(Default)]
pub(super) struct Context {
    errors: Mutex<Vec<(Code, String)>>,
}

impl Context {
    fn take_errors(&self) -> Vec<(Code, String)> {
        std::mem::take(&mut self.errors.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClientContext for Context {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
            errors.push((code, reason.to_owned()));
        }
    }
}

impl ConsumerContext for Context {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_named_by_its_cause() {
        let classify = |code, last| ConnectFailure::classify(code, "all down", last);
        assert_eq!(classify(Code::SSL, None), Some(ConnectFailure::Tls("all down".into())));
        let refused = Some(ConnectFailure::Unreachable("refused".into()));
        assert_eq!(classify(Code::AllBrokersDown, Some("refused")), refused);
        let unreachable = Some(ConnectFailure::Unreachable("all down".into()));
        assert_eq!(classify(Code::AllBrokersDown, None), unreachable);
        assert_eq!(classify(Code::BrokerTransportFailure, None), None);
    }
}
