use rdkafka::error::KafkaError;
use std::process::ExitStatus;
use std::time::Duration;
use std::{fmt, io};

/// Why a server did not start, or did not do what a test asked of it.
///
/// `Debug` prints what `Display` prints, since tests `unwrap`, and the log should be readable then.
#[non_exhaustive]
pub enum ServerError {
    /// Something that has to be installed is not there.
    Missing {
        /// What was looked for, and where.
        what: String,
        /// How it is installed.
        install: &'static str,
    },
    /// Another process has the port.
    PortTaken {
        /// The program that wanted to listen on it.
        server: String,
        /// The port on loopback.
        port: u16,
    },
    /// The process ended before it was ready.
    Exited {
        /// The program.
        server: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The process runs, and has not become ready within the bound.
    NotReady {
        /// The program.
        server: String,
        /// The bound.
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
            Self::PortTaken { server, port } => write!(f, "{server}: port {port} is taken"),
            Self::Exited { server, status, log } => {
                write!(f, "{server} ended ({status}) before it was ready:\n{log}")
            }
            Self::NotReady { server, within, log } => {
                write!(f, "{server} was not ready within {within:?}:\n{log}")
            }
            Self::Io(_) => f.write_str("a file, a socket or a process could not be used"),
            Self::Kafka(_) => f.write_str("the Kafka client failed"),
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
