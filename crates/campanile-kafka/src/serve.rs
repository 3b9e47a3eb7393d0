//! Serving, until it ends.

use std::fmt;
use std::future::IntoFuture;

use futures_util::future::{BoxFuture, Either, select};

use crate::error::ConsumerError;
use crate::handle::Handle;
use crate::signals::Signals;
use crate::summary::Summary;

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
    handle: Handle,
    signal: BoxFuture<'static, ()>,
    /// Whether it ends by the process's own.
    signals: bool,
}

// Boxed, so that a service which does not fit is one error, at `serve`, and not another at the await.
type Start = Box<dyn FnOnce(BoxFuture<'static, ()>) -> Serving + Send>;

type Serving = BoxFuture<'static, Result<Summary, ConsumerError>>;

impl Serve {
    pub(crate) fn new(
        consumer: String,
        handle: Handle,
        start: impl FnOnce(BoxFuture<'static, ()>) -> Serving + Send + 'static,
    ) -> Self {
        Self {
            consumer: consumer.into(),
            start: Box::new(start),
            handle,
            signal: Box::pin(std::future::pending()),
            signals: false,
        }
    }

    /// What pauses, resumes and ends it, and tells how it does.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
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
    type IntoFuture = Serving;

    fn into_future(self) -> Serving {
        let Self { start, handle, signal, signals, .. } = self;
        let serving = start(signal);
        if !signals {
            return serving;
        }
        Box::pin(async move {
            let signals = Signals::listen().map_err(ConsumerError::Config)?;
            match select(serving, std::pin::pin!(signals.end(handle))).await {
                Either::Left((ended, _)) => ended,
                Either::Right((never, _)) => match never {},
            }
        })
    }
}

impl fmt::Debug for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serve({})", self.consumer)
    }
}
