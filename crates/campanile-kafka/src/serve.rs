//! Serving, until it ends.

use std::fmt;
use std::future::IntoFuture;

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{BoxFuture, Either, select};
use tokio::runtime;
use tokio::time::timeout;

use crate::driver::{CLOSE, Control, Shutdown};
use crate::error::ConsumerError;
use crate::handle::Handle;
use crate::signals::Signals;
use crate::summary::Summary;
use crate::thread::Serving;

/// A consumer with its service: await it. Made by
/// [`Consumer::serve`](crate::Consumer::serve).
///
/// It ends with a [`Summary`] after a signal
/// ([`with_shutdown_signals`](Self::with_shutdown_signals),
/// [`with_graceful_shutdown`](Self::with_graceful_shutdown)) or when its [`Handle`] says so, and
/// otherwise only with an error.
///
/// # Cancellation
/// Dropping the future is a shutdown, too, but one that waits for nothing: records at work are
/// dropped and their locks released, what was finished is committed, and the consumer leaves its
/// group, on a thread of its own. A program that ends at once does not wait for that: then locks
/// expire by themselves, and what was finished is answered as duplicates when it comes again.
///
/// # Panics
/// When it is awaited outside of a tokio runtime, or, with `with_shutdown_signals`, in one whose I/O
/// is not enabled.
#[must_use = "it serves nothing until it is awaited"]
pub struct Serve {
    consumer: Box<str>,
    start: Start,
    control: Arc<Control>,
    signal: BoxFuture<'static, ()>,
    /// Whether it ends by the process's own.
    signals: bool,
}

// Boxed, so that a service which does not fit is one error, at `serve`, and not another at the await.
type Start = Box<dyn FnOnce(runtime::Handle) -> Result<Serving, ConsumerError> + Send>;

impl Serve {
    pub(crate) fn new(
        consumer: String,
        control: Arc<Control>,
        start: impl FnOnce(runtime::Handle) -> Result<Serving, ConsumerError> + Send + 'static,
    ) -> Self {
        Self {
            consumer: consumer.into(),
            start: Box::new(start),
            control,
            signal: Box::pin(std::future::pending()),
            signals: false,
        }
    }

    /// What pauses, resumes and ends it, and tells how it does.
    pub fn handle(&self) -> Handle {
        Handle::new(self.control.clone())
    }

    /// Ends gracefully when this future resolves: nothing more is read or begun, records at work may
    /// end (see [`Consumer::with_drain_timeout`](crate::Consumer::with_drain_timeout)) and are
    /// committed, and the consumer leaves its group.
    ///
    /// That takes no longer than the drain's time-out and some seconds, also if the brokers cannot
    /// be reached. Give it every signal by which the program is stopped: an orchestrator sends
    /// SIGTERM, a terminal SIGINT. To end it before that time is over, call
    /// [`Handle::shutdown_now`].
    pub fn with_graceful_shutdown<F>(self, signal: F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { signal: Box::pin(signal), ..self }
    }

    /// Ends by the signals that stop a program, SIGTERM and SIGINT (Ctrl-C): gracefully at the first,
    /// as [`with_graceful_shutdown`](Self::with_graceful_shutdown) does, and at once at the second, as
    /// [`Handle::shutdown_now`] does.
    ///
    /// From the await on, and for the rest of the process's life, these signals end nothing else by
    /// themselves: tokio keeps what it has registered.
    pub fn with_shutdown_signals(self) -> Self {
        Self { signals: true, ..self }
    }
}

impl IntoFuture for Serve {
    type Output = Result<Summary, ConsumerError>;
    type IntoFuture = BoxFuture<'static, Result<Summary, ConsumerError>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { start, control, signal, signals, .. } = self;
        Box::pin(async move {
            let handle = Handle::new(control.clone());
            // Once serving has ended, this changes nothing.
            let _abandoned = Abandoned(control.clone());
            let serving = pin!(serve(start, control, signal));
            if !signals {
                return serving.await;
            }
            let signals = Signals::listen().map_err(ConsumerError::Config)?;
            match select(serving, pin!(signals.end(handle))).await {
                Either::Left((ended, _)) => ended,
                Either::Right((never, _)) => match never {},
            }
        })
    }
}

/// Starts the driver, and waits for its end.
async fn serve(
    start: Start,
    control: Arc<Control>,
    signal: BoxFuture<'static, ()>,
) -> Result<Summary, ConsumerError> {
    let Serving { result, closed } = start(runtime::Handle::current())?;
    let ended = match select(result, signal).await {
        Either::Left((ended, _)) => ended,
        Either::Right(((), result)) => {
            control.shutdown(Shutdown::Graceful);
            result.await
        }
    };
    let summary = ended
        .unwrap_or_else(|_| Err(ConsumerError::kafka("the driver's thread has panicked", None)));
    // A source whose brokers do not answer is left behind.
    if timeout(CLOSE, closed).await.is_err() {
        tracing::warn!("timed out leaving the group");
    }
    summary
}

/// Ends serving at once when its future is dropped.
struct Abandoned(Arc<Control>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.shutdown(Shutdown::Now);
    }
}

impl fmt::Debug for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serve({})", self.consumer)
    }
}
