//! The measured unit: a no-op handler, bare and under the layer.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use campanile::reply::BytesReply;
use campanile::{BoxError, IdempotencyLayer, KeyExtractor, Outcome, WithLock, lock::Clock};
use futures_util::future::try_join_all;
use tower::{Service, ServiceExt};

/// A handler that does nothing.
#[derive(Clone)]
pub(crate) struct Noop;

impl Service<WithLock<Message>> for Noop {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: WithLock<Message>) -> Self::Future {
        ready(Ok(()))
    }
}

/// The processed message: a number, from which a key of 57 bytes is derived.
#[derive(Clone, Copy)]
pub(crate) struct Message(pub(crate) u64);

pub(crate) fn key(message: &WithLock<Message>) -> String {
    numbered_key(message.0)
}

/// Formats the key for this number.
pub(crate) fn numbered_key(number: u64) -> String {
    format!("a-key-of-57-bytes-as-they-are-found-with-users/{number:010}")
}

/// The no-op handler under the layer. Any outcome but a first run is an error.
pub(crate) fn with_layer<E>(layer: &IdempotencyLayer<E>) -> impl Handler + use<E>
where
    E: KeyExtractor<WithLock<Message>> + Send + Sync + 'static,
{
    tower::Layer::layer(layer, Noop).map_result(processed)
}

/// A handler that returns `reply`, under the layer. Any outcome but a first run is an error.
pub(crate) fn with_layer_replying<E>(
    layer: &IdempotencyLayer<E, BytesReply>,
    reply: Bytes,
) -> impl Handler + use<E>
where
    E: KeyExtractor<WithLock<Message>> + Send + Sync + 'static,
{
    let handler =
        tower::service_fn(move |_: WithLock<Message>| ready(Ok::<_, Infallible>(reply.clone())));
    tower::Layer::layer(layer, handler).map_result(processed)
}

/// Makes any outcome but a first run an error.
pub(crate) fn processed<T>(result: Result<Outcome<T>, BoxError>) -> Result<(), BoxError> {
    match result? {
        Outcome::Processed(_) => Ok(()),
        _ => Err(BoxError::from("a message was not processed")),
    }
}

/// A measurable handler.
pub(crate) trait Handler:
    Service<WithLock<Message>, Response = (), Error: Into<BoxError> + Send, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> Handler for S where
    S: Service<WithLock<Message>, Response = (), Error: Into<BoxError> + Send, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// Handles the messages with these numbers in `tasks` concurrent tasks, and measures how long that
/// takes.
///
/// # Errors
/// Fails with the handler's first error.
pub(crate) async fn process(
    handler: impl Handler,
    numbers: Range<u64>,
    tasks: u64,
) -> Result<Duration, BoxError> {
    let clock = Clock::boot();
    let start = clock.now();
    let share = (numbers.end - numbers.start) / tasks;
    let running = (0..tasks).map(|task| {
        let mut handler = handler.clone();
        let first = numbers.start + task * share;
        tokio::spawn(async move {
            for number in first..first + share {
                let message = std::hint::black_box(WithLock::new(Message(number)));
                handler
                    .ready()
                    .await
                    .map_err(Into::into)?
                    .call(message)
                    .await
                    .map_err(Into::into)?;
            }
            Ok::<_, BoxError>(())
        })
    });
    for result in try_join_all(running).await? {
        result?;
    }
    Ok(clock.now() - start)
}
