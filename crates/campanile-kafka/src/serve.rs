//! Serving, until it ends.

use std::fmt;
use std::future::{IntoFuture, Pending};

use campanile_core::{BoxableError, Record};
use futures_util::future::BoxFuture;
use tower_service::Service;

use crate::consumer::Consumer;
use crate::error::ConsumerError;
use crate::summary::Summary;
use crate::task::Task;

/// A consumer with its service: await it. Made by [`Consumer::serve`].
///
/// It ends with a [`Summary`] after the signal of
/// [`with_graceful_shutdown`](Self::with_graceful_shutdown), and otherwise only with an error.
///
/// # Cancellation
/// Dropping the future is a shutdown, too, but one that waits for nothing: records at work are
/// dropped and their locks released, what was finished is committed, and the consumer leaves its
/// group, on a thread of its own.
///
/// # Panics
/// When it is awaited outside of a tokio runtime.
#[must_use = "it serves nothing until it is awaited"]
pub struct Serve<S, F = Pending<()>> {
    consumer: Consumer,
    service: S,
    signal: F,
}

impl<S> Serve<S> {
    pub(crate) fn new(consumer: Consumer, service: S) -> Self {
        Self {
            consumer,
            service,
            signal: std::future::pending(),
        }
    }

    /// Ends gracefully when this future resolves: nothing more is read or begun, records at work may
    /// end (see [`Consumer::with_drain_timeout`]) and are committed, and the consumer leaves its
    /// group.
    ///
    /// That takes no longer than the drain's time-out and some seconds, also if the brokers cannot
    /// be reached.
    pub fn with_graceful_shutdown<F>(self, signal: F) -> Serve<S, F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Serve {
            consumer: self.consumer,
            service: self.service,
            signal,
        }
    }
}

impl<S, F> IntoFuture for Serve<S, F>
where
    S: Service<Record> + Send + 'static,
    S::Error: BoxableError,
    S::Future: Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    type Output = Result<Summary, ConsumerError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            consumer,
            service,
            signal,
        } = self;
        Box::pin(async move {
            // A task of its own: on a worker of the runtime it is next to the tasks that it starts,
            // and whoever awaits it may be busy with other things in between.
            Task::spawn(consumer.run(service, Box::pin(signal)))
                .join()
                .await
        })
    }
}

impl<S, F> fmt::Debug for Serve<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}
