//! The signals that stop a program.

use std::convert::Infallible;
use std::io;

use campanile_core::ConfigError;

use crate::handle::Handle;

/// Those of this process.
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(windows)]
    interrupt: tokio::signal::windows::CtrlC,
}

impl Signals {
    /// What comes from now on is heard.
    pub(crate) fn listen() -> Result<Self, ConfigError> {
        Self::register().map_err(|error| {
            ConfigError::new(format!("the signals that stop a program cannot be heard: {error}"))
        })
    }

    /// Ends serving: gracefully at the first, at once at the second.
    pub(crate) async fn end(mut self, handle: Handle) -> Infallible {
        let signal = self.next().await;
        tracing::info!(signal, "shutting down; a second signal does not wait for what is at work");
        handle.shutdown();
        let signal = self.next().await;
        tracing::warn!(signal, "shutting down at once: what is at work is let go");
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

    /// The next one's name.
    #[cfg(unix)]
    async fn next(&mut self) -> &'static str {
        use futures_util::future::{Either, select};
        use std::pin::pin;

        // Neither ever ends.
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
