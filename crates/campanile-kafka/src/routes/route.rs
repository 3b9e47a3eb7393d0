//! One of several services, whatever its type.

use std::error::Error;
use std::fmt;
use std::task::{Context, Poll};

use campanile_core::{BoxError, BoxableError, Record, error};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tower_service::Service;

use crate::transaction::Answered;

/// A service without its type. The response is not looked at.
pub(super) trait Route: Send {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>>;
    fn call(&mut self, record: Record) -> BoxFuture<'static, Result<Answered, BoxError>>;
}

/// The service of a topic.
pub(super) struct Served<S>(pub(super) S);

impl<S> Route for Served<S>
where
    S: Service<Record> + Send,
    S::Error: BoxableError,
    S::Future: Send + 'static,
{
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, record: Record) -> BoxFuture<'static, Result<Answered, BoxError>> {
        let future = self.0.call(record);
        Box::pin(async move { future.await.map(|_| Ok(Vec::new())).map_err(Into::into) })
    }
}

/// What stands for a fallback where there is none.
pub(super) struct Unrouted;

impl Route for Unrouted {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, record: Record) -> BoxFuture<'static, Result<Answered, BoxError>> {
        let no_route = NoRoute { topic: record.origin().topic.to_string().into() };
        ready(Err(error::permanent(no_route).into())).boxed()
    }
}

/// A record's topic has no route in [`Routes`](super::Routes), and there is no fallback.
///
/// It is marked as [permanent](error::permanent), so the record is given up as
/// [`with_given_up`](crate::Consumer::with_given_up) says. A
/// [classifier](crate::Consumer::with_classifier) for this type can say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoute {
    topic: Box<str>,
}

impl NoRoute {
    /// The topic in which the record stood first.
    pub fn topic(&self) -> &str {
        &self.topic
    }
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`Routes` has neither a route for the topic `{}` nor a fallback", self.topic)
    }
}

impl Error for NoRoute {}
