//! Why serving ended.

use std::error::Error;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use campanile_core::{BoxError, ConfigError, Coordinates, error};
use rdkafka::error::KafkaError;

/// Why [`Serve`](crate::Serve) ended otherwise than by its signal.
///
/// Before it is returned, what was in flight was drained as in a graceful shutdown, and what was
/// finished was committed.
///
/// `Debug` prints the error with all its sources, since that is what a `main` that returns it shows.
#[non_exhaustive]
pub enum ConsumerError {
    /// The settings contradict each other.
    Config(ConfigError),
    /// The service will never be ready again: its `poll_ready` failed, or panicked.
    Service(BoxError),
    /// A record stopped the consumer. Its offset is not committed, so it is the first that comes
    /// again.
    Stopped {
        /// Which record.
        at: Coordinates,
        /// Why, with what would help; the service's error is among its sources.
        source: BoxError,
    },
    /// Kafka cannot be consumed: no broker was reached at the start, a topic does not exist, the
    /// group may not be joined, or librdkafka reported a fatal error.
    Kafka {
        /// What does not work, and what would help.
        what: Box<str>,
        /// librdkafka's error, if it gave one.
        source: Option<KafkaError>,
    },
}

impl ConsumerError {
    pub(crate) fn kafka(what: impl Into<Box<str>>, source: Option<KafkaError>) -> Self {
        Self::Kafka { what: what.into(), source }
    }

    pub(crate) fn stopped(at: &Coordinates, help: &'static str, source: BoxError) -> Self {
        Self::Stopped { at: at.clone(), source: Box::new(Unfinished { help, source }) }
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
            Self::Config(_) => f.write_str("the consumer's settings contradict"),
            Self::Service(_) => f.write_str("the service is not ready any more"),
            Self::Stopped { at, .. } => write!(f, "stopped at {at}, which is not committed"),
            Self::Kafka { what, .. } => f.write_str(what),
        }
    }
}

impl Error for ConsumerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Service(error) | Self::Stopped { source: error, .. } => Some(&**error),
            Self::Kafka { source, .. } => source.as_ref().map(|error| error as _),
        }
    }
}

/// A record that stops the consumer, with what would help.
#[derive(Debug)]
struct Unfinished {
    help: &'static str,
    source: BoxError,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.help)
    }
}

impl Error for Unfinished {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// An error with its sources, for events: one line, and no record's content of ours.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    error::sources(error).map(shown).collect::<Vec<_>>().join(": ")
}

/// An error's text.
fn shown(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    write_text(&mut text, error);
    text
}

/// Writes an error's text. Errors come from users: a `Display` that fails has written what it could,
/// and so has one that panics.
pub(crate) fn write_text(to: &mut impl Write, error: &(dyn Error + 'static)) {
    let written = catch_unwind(AssertUnwindSafe(|| write!(to, "{error}")));
    if written.is_err() {
        let _ = to.write_str("(an error whose text panicked)");
    }
}

/// A panic's message, where it has one.
pub(crate) fn panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    error::panic_text(panic).unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is shown, or when it is asked for its source.
    #[derive(Debug)]
    enum Rude {
        Text,
        Source,
    }

    impl fmt::Display for Rude {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("rude")?;
            match self {
                Self::Text => panic!("a panic of this test"),
                Self::Source => Ok(()),
            }
        }
    }

    impl Error for Rude {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            match self {
                Self::Text => None,
                Self::Source => panic!("a panic of this test"),
            }
        }
    }

    #[test]
    fn an_error_that_panics_when_it_is_shown_is_shown_as_far_as_it_goes() {
        let of_text = chain(&error::permanent(Rude::Text));
        assert_eq!(of_text, "permanent error: rude(an error whose text panicked)");
        assert_eq!(chain(&error::permanent(Rude::Source)), "permanent error: rude");
    }
}
