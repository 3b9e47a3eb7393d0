//! The error of a consumer.

use std::error::Error;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use campanile_core::telemetry::ErrorType;
use campanile_core::{
    BoxError, ConfigError, Coordinates, DecodeError, Disposition, LockHandle, Record, error,
};
use campanile_idempotency::{IdempotencyError, StoreErrorKind};
use tracing::field::{DisplayValue, display};

/// Why [`Serve`](crate::Serve) ended other than by a shutdown.
///
/// Before the error is returned, records in flight are drained as in a graceful shutdown, and
/// finished records are committed.
///
/// `Debug` prints the error with all its sources, because a `main` that returns the error prints it
/// with `Debug`.
#[non_exhaustive]
pub enum ConsumerError {
    /// The settings are invalid, or contradict each other.
    Config(ConfigError),
    /// The service will never be ready again: its `poll_ready` failed or panicked.
    Service(BoxError),
    /// A record stopped the consumer. Its offset is not committed, so the record is the first one
    /// to be received again.
    Stopped {
        /// The position of the record.
        at: Coordinates,
        /// Why the record stopped the consumer, and what to do. The service's error is among its
        /// sources.
        source: BoxError,
    },
    /// Kafka cannot be consumed: no broker was reached at the start, a topic does not exist, the
    /// group may not be joined, or librdkafka reported a fatal error.
    Kafka {
        /// What failed, and what to do.
        message: Box<str>,
        /// The error of the client, if it gave one: an [`rdkafka::error::KafkaError`].
        ///
        /// [`rdkafka::error::KafkaError`]: https://docs.rs/rdkafka/0.39/rdkafka/error/enum.KafkaError.html
        source: Option<BoxError>,
    },
}

impl ConsumerError {
    /// The source cannot be consumed.
    pub fn kafka(message: impl Into<Box<str>>, source: Option<BoxError>) -> Self {
        Self::Kafka { message: message.into(), source }
    }

    /// The record at `at` stops the consumer; `help` says what to do.
    pub fn stopped(at: &Coordinates, help: &'static str, source: BoxError) -> Self {
        Self::Stopped { at: at.clone(), source: Box::new(StopReason { help, source }) }
    }
}

impl fmt::Debug for ConsumerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self))
    }
}

impl fmt::Display for ConsumerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(_) => f.write_str("invalid consumer settings"),
            Self::Service(_) => f.write_str("the service will never be ready again"),
            Self::Stopped { at, .. } => write!(f, "stopped at {at}; its offset is not committed"),
            Self::Kafka { message, .. } => f.write_str(message),
        }
    }
}

impl Error for ConsumerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Service(error) | Self::Stopped { source: error, .. } => Some(&**error),
            Self::Kafka { source, .. } => source.as_ref().map(|error| &**error as _),
        }
    }
}

/// The reason why a record stops the consumer, with what to do.
#[derive(Debug)]
struct StopReason {
    help: &'static str,
    source: BoxError,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.help)
    }
}

impl Error for StopReason {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// A record's topic has no route in [`Routes`](crate::Routes), and there is no fallback.
///
/// The error is marked as [permanent](error::permanent), so the record is given up by the policy of
/// `on_give_up`. A
/// [classifier](crate::DriverConfig::classifiers) for this type can decide otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoute {
    pub(crate) topic: Box<str>,
}

impl NoRoute {
    /// Returns the topic that the record was first read from.
    pub fn topic(&self) -> &str {
        &self.topic
    }
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`Routes` has neither a route for topic `{}` nor a fallback", self.topic)
    }
}

impl Error for NoRoute {}

/// Classifies the error of a service.
pub(crate) fn error_type(error: &(dyn Error + 'static)) -> ErrorType {
    let Some(own) = IdempotencyError::find(error) else {
        return if error::find::<DecodeError>(error).is_some() {
            ErrorType::Decode
        } else if error::find::<NoRoute>(error).is_some() {
            ErrorType::NoRoute
        } else {
            ErrorType::Other
        };
    };
    match own {
        IdempotencyError::MissingKey => ErrorType::MissingKey,
        IdempotencyError::InvalidKey(_) => ErrorType::InvalidKey,
        IdempotencyError::Locked { .. } => ErrorType::Locked,
        IdempotencyError::BackingOff { .. } => ErrorType::BackingOff,
        IdempotencyError::Mismatch { .. } => ErrorType::Mismatch,
        IdempotencyError::Exhausted(_) => ErrorType::Exhausted,
        IdempotencyError::AttemptFailed(failed) => match failed.disposition {
            Disposition::Unavailable { .. } => ErrorType::DependencyUnavailable,
            _ => ErrorType::AttemptFailed,
        },
        IdempotencyError::LockLost(_) => ErrorType::LockLost,
        IdempotencyError::Store(error) => match error.kind() {
            StoreErrorKind::Unreadable => ErrorType::StoreUnreadable,
            StoreErrorKind::Misconfigured => ErrorType::StoreMisconfigured,
            _ => ErrorType::StoreUnavailable,
        },
        IdempotencyError::ShuttingDown => ErrorType::ShuttingDown,
        _ => ErrorType::Other,
    }
}

/// Logs why a record stops the consumer or its partition (`what`), and what to do. `lock` is the lock
/// of the record's last attempt, if it had one.
pub fn log_stop(
    what: &str,
    at: &Coordinates,
    origin: &Coordinates,
    lock: Option<&LockHandle>,
    help: &str,
    error: &(dyn Error + 'static),
) {
    tracing::error!(
        record = %at,
        origin = (origin != at).then(|| display(origin)),
        namespace = lock.map(|lock| lock.namespace().as_str()),
        attempts = lock.map(LockHandle::attempt),
        error = chain(error),
        "{what} stopped at a record: {help}"
    );
}

/// Log events refer to a copy's record by its original position. `None` if the record is not a
/// copy.
pub fn origin(record: &Record) -> Option<DisplayValue<&Coordinates>> {
    (record.origin() != record.coordinates()).then(|| display(record.origin()))
}

/// Joins the texts of an error and its sources on one line, for log events. Campanile's own errors
/// do not contain record content.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    error::sources(error).map(display_text).collect::<Vec<_>>().join(": ")
}

fn display_text(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    write_text(&mut text, error);
    text
}

/// Writes an error's text. Errors come from users: if a `Display` fails or panics, the text that it
/// has written so far is kept.
pub fn write_text(to: &mut impl Write, error: &(dyn Error + 'static)) {
    let written = catch_unwind(AssertUnwindSafe(|| write!(to, "{error}")));
    if written.is_err() {
        let _ = to.write_str("(formatting the error panicked)");
    }
}

/// Finds the text of a panic.
pub fn panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    error::panic_text(panic).unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is formatted, or when it is asked for its source.
    #[derive(Debug)]
    enum PanickingError {
        Text,
        Source,
    }

    impl fmt::Display for PanickingError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("rude")?;
            match self {
                Self::Text => panic!("injected panic"),
                Self::Source => Ok(()),
            }
        }
    }

    impl Error for PanickingError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            match self {
                Self::Text => None,
                Self::Source => panic!("injected panic"),
            }
        }
    }

    #[test]
    fn panicking_error_is_formatted_up_to_the_panic() {
        let of_text = chain(&error::permanent(PanickingError::Text));
        assert_eq!(of_text, "permanent error: rude(formatting the error panicked)");
        assert_eq!(chain(&error::permanent(PanickingError::Source)), "permanent error: rude");
    }
}
