//! The future of a running consumer.

use std::fmt;
use std::future::IntoFuture;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use tokio::runtime;
use tokio::time::timeout;

use crate::control::{Control, DriverControl, DriverStatus, Shutdown};
use crate::driver::{Driver, DriverThread};
use crate::error::ConsumerError;
use crate::event_loop::LEAVE_TIMEOUT;
use crate::handle::Handle;
use crate::signals::Signals;
use crate::source::Source;
use crate::source_context::SourceContext;
use crate::summary::Summary;

/// A consumer with its service, which serves when awaited. Returned by
/// `Consumer::serve`.
///
/// The future completes with a [`Summary`] after a signal
/// ([`with_shutdown_signals`](Self::with_shutdown_signals),
/// [`with_graceful_shutdown`](Self::with_graceful_shutdown)) or a shutdown by its [`Handle`], and
/// otherwise only with an error.
///
/// # Cancellation
/// Dropping the future also shuts the consumer down, without waiting: records in flight are dropped and
/// their locks released, finished records are committed, and the consumer leaves its group, all on a
/// separate thread. A program that exits immediately does not wait for that thread. Locks then expire by
/// themselves, and finished records that are delivered again are answered as duplicates.
///
/// # Panics
/// Panics if awaited outside of a tokio runtime or, with `with_shutdown_signals`, in a runtime without
/// I/O enabled.
#[must_use = "a consumer serves nothing until it is awaited"]
pub struct Serve {
    consumer: Box<str>,
    start: Start,
    control: Arc<Control>,
    signal: BoxFuture<'static, ()>,
    /// Whether the signals of the process shut it down.
    shutdown_signals: bool,
}

// Boxed, so that a service with the wrong bounds causes one compile error at `serve`, and not another
// one at the await.
type Start = Box<dyn FnOnce(runtime::Handle) -> Result<DriverThread, ConsumerError> + Send>;

impl Serve {
    /// Creates a consumer with this description, for `Debug`. `driver` checks its settings when it is awaited.
    /// It is not live if the source is not polled for `max_poll_interval`.
    pub fn new<F, S>(
        consumer: impl Into<Box<str>>,
        max_poll_interval: Duration,
        driver: impl FnOnce() -> Result<Driver<F>, ConsumerError> + Send + 'static,
    ) -> Self
    where
        F: FnOnce(&SourceContext) -> Result<S, ConsumerError> + Send + 'static,
        S: Source,
    {
        let driver_control = DriverControl::new(DriverStatus::new(max_poll_interval));
        let control = driver_control.shared().clone();
        let start = move |runtime| driver()?.spawn(runtime, driver_control);
        Self {
            consumer: consumer.into(),
            start: Box::new(start),
            control,
            signal: Box::pin(std::future::pending()),
            shutdown_signals: false,
        }
    }

    /// Creates a handle, which pauses, resumes and shuts down the consumer, and reports its state.
    pub fn handle(&self) -> Handle {
        Handle::new(self.control.clone())
    }

    /// Shuts down gracefully when this future resolves: no more records are read or started, records in
    /// flight may finish (see `Consumer::with_drain_timeout`) and
    /// are committed, and the consumer leaves its group.
    ///
    /// The shutdown takes at most the drain timeout and some seconds, even if the brokers are
    /// unreachable. To end it earlier, call [`Handle::shutdown_now`].
    ///
    /// The future should resolve on every signal that stops the program: an orchestrator sends SIGTERM, a
    /// terminal SIGINT.
    pub fn with_graceful_shutdown<F>(self, signal: F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { signal: Box::pin(signal), ..self }
    }

    /// Shuts down on the signals that stop a program, SIGTERM and SIGINT (Ctrl-C): gracefully on the
    /// first one, as [`with_graceful_shutdown`](Self::with_graceful_shutdown) does, and immediately on
    /// the second one, as [`Handle::shutdown_now`] does.
    ///
    /// Once this is awaited, these signals no longer terminate the process by themselves, for the rest of
    /// its lifetime: tokio never removes its signal handlers.
    pub fn with_shutdown_signals(self) -> Self {
        Self { shutdown_signals: true, ..self }
    }
}

impl IntoFuture for Serve {
    type Output = Result<Summary, ConsumerError>;
    type IntoFuture = BoxFuture<'static, Result<Summary, ConsumerError>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { start, control, signal, shutdown_signals, .. } = self;
        Box::pin(async move {
            let handle = Handle::new(control.clone());
            // Has no effect once serving has ended.
            let _shutdown = ShutdownOnDrop(control.clone());
            let serving = pin!(serve(start, control, signal));
            if !shutdown_signals {
                return serving.await;
            }
            let signals = Signals::listen().map_err(ConsumerError::Config)?;
            match select(serving, pin!(signals.shut_down(handle))).await {
                Either::Left((ended, _)) => ended,
                Either::Right((never, _)) => match never {},
            }
        })
    }
}

/// Starts the driver, and waits until it has ended.
async fn serve(
    start: Start,
    control: Arc<Control>,
    signal: BoxFuture<'static, ()>,
) -> Result<Summary, ConsumerError> {
    let DriverThread { result, closed } = start(runtime::Handle::current())?;
    let ended = match select(result, signal).await {
        Either::Left((ended, _)) => ended,
        Either::Right(((), result)) => {
            control.shutdown(Shutdown::Graceful);
            result.await
        }
    };
    let summary = ended
        .unwrap_or_else(|_| Err(ConsumerError::kafka("the driver's thread has panicked", None)));
    // Does not wait any longer for a source with unresponsive brokers.
    if timeout(LEAVE_TIMEOUT, closed).await.is_err() {
        tracing::warn!("timed out leaving the group");
    }
    summary
}

/// Shuts down immediately when the future of serving is dropped.
struct ShutdownOnDrop(Arc<Control>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        self.0.shutdown(Shutdown::Now);
    }
}

impl fmt::Debug for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serve({})", self.consumer)
    }
}
