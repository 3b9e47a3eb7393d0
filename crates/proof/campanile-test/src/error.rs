use rdkafka::error::KafkaError;
use std::process::ExitStatus;
use std::time::Duration;
use std::{fmt, io};

/// Why a server did not start, or did not do what a test asked for.
///
/// `Debug` prints the same text as `Display`, so that the output stays readable when a test unwraps
/// the error.
#[non_exhaustive]
pub enum ServerError {
    /// A required program or file is not installed.
    Missing {
        /// What is missing, and where it was expected.
        what: String,
        /// How to install it.
        install: &'static str,
    },
    /// Another process uses the port.
    PortTaken {
        /// The program that tried to listen on the port.
        server: String,
        /// The port on loopback.
        port: u16,
    },
    /// The process exited before it was ready.
    Exited {
        /// The program.
        server: String,
        /// The exit status.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The process runs but was not ready within the time limit.
    NotReady {
        /// The program.
        server: String,
        /// The time limit.
        within: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// A file, a socket or the process itself could not be used.
    Io(io::Error),
    /// librdkafka answered with an error.
    Kafka(KafkaError),
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { what, install } => write!(f, "{what} is missing; {install}"),
            Self::PortTaken { server, port } => write!(f, "{server}: port {port} is in use"),
            Self::Exited { server, status, log } => {
                write!(f, "{server} exited ({status}) before it was ready:\n{log}")
            }
            Self::NotReady { server, within, log } => {
                write!(f, "{server} was not ready within {within:?}:\n{log}")
            }
            Self::Io(_) => f.write_str("failed to use a file, a socket or a process"),
            Self::Kafka(_) => f.write_str("the Kafka client returned an error"),
        }
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{self}: {error}"),
            Self::Kafka(error) => write!(f, "{self}: {error}"),
            _ => fmt::Display::fmt(self, f),
        }
    }
}

impl std::error::Error for ServerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Kafka(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for ServerError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<KafkaError> for ServerError {
    fn from(error: KafkaError) -> Self {
        Self::Kafka(error)
    }
}
