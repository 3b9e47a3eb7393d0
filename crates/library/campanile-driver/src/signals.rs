//! Shutdown signals.

use std::convert::Infallible;
use std::io;

use campanile_core::ConfigError;

use crate::handle::Handle;

/// The shutdown signals of this process.
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(windows)]
    interrupt: tokio::signal::windows::CtrlC,
}

impl Signals {
    /// Registers for the signals. Signals that arrive from now on are not lost.
    pub(crate) fn listen() -> Result<Self, ConfigError> {
        Self::register().map_err(|error| {
            ConfigError::new(format!("failed to register for shutdown signals: {error}"))
        })
    }

    /// Shuts the consumer down: gracefully at the first signal, at once at the second.
    pub(crate) async fn shut_down(mut self, handle: Handle) -> Infallible {
        let signal = self.next().await;
        tracing::info!(signal, "shutting down; a second signal drops the records in flight");
        handle.shutdown();
        let signal = self.next().await;
        tracing::warn!(signal, "shutting down at once; dropping the records in flight");
        handle.shutdown_now();
        std::future::pending().await
    }

    #[cfg(unix)]
    fn register() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    #[cfg(windows)]
    fn register() -> io::Result<Self> {
        Ok(Self { interrupt: tokio::signal::windows::ctrl_c()? })
    }

    /// Waits for the next signal and returns its name.
    #[cfg(unix)]
    async fn next(&mut self) -> &'static str {
        use futures_util::future::{Either, select};
        use std::pin::pin;

        // Neither of the two streams ever ends.
        match select(pin!(self.terminate.recv()), pin!(self.interrupt.recv())).await {
            Either::Left(_) => "SIGTERM",
            Either::Right(_) => "SIGINT",
        }
    }

    #[cfg(windows)]
    async fn next(&mut self) -> &'static str {
        self.interrupt.recv().await;
        "Ctrl-C"
    }
}
