//! A world of the user, without its types.

use std::future::poll_fn;

use campanile_core::{BoxError, Outcome};
use campanile_idempotency::LockKeeper;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use tower_service::Service;

use super::delivery::Finished;
use super::process::Stack;

/// What survives a crash, how a process starts in it, and what must hold at the end.
pub(super) trait World<R> {
    fn start(&self, keeper: LockKeeper) -> LocalBoxFuture<'_, Result<Stack<R>, BoxError>>;

    fn check(&self) -> LocalBoxFuture<'_, Result<(), BoxError>>;
}

/// The user's value, and the functions for it.
pub(super) struct TypedWorld<'a, W, Start, Check> {
    pub(super) world: W,
    pub(super) start: &'a Start,
    pub(super) check: &'a Check,
}

impl<R, W, S, T, E, Start, Check> World<R> for TypedWorld<'_, W, Start, Check>
where
    R: 'static,
    W: Clone,
    S: Service<R, Response = Outcome<T>, Error: Into<BoxError>> + Clone + 'static,
    E: Into<BoxError>,
    Start: AsyncFn(W, LockKeeper) -> Result<S, BoxError>,
    Check: AsyncFn(W) -> Result<(), E>,
{
    fn start(&self, keeper: LockKeeper) -> LocalBoxFuture<'_, Result<Stack<R>, BoxError>> {
        async move {
            let service = (self.start)(self.world.clone(), keeper).await?;
            let stack: Stack<R> = Box::new(move |request| deliver(service.clone(), request));
            Ok(stack)
        }
        .boxed_local()
    }

    fn check(&self) -> LocalBoxFuture<'_, Result<(), BoxError>> {
        async { (self.check)(self.world.clone()).await.map_err(Into::into) }.boxed_local()
    }
}

fn deliver<R, S, T>(
    mut service: S,
    request: R,
) -> LocalBoxFuture<'static, Result<Finished, BoxError>>
where
    R: 'static,
    S: Service<R, Response = Outcome<T>, Error: Into<BoxError>> + 'static,
{
    async move {
        poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
        Ok(match service.call(request).await.map_err(Into::into)? {
            Outcome::GivenUp(given_up) => {
                Finished::GivenUp(given_up.error.unwrap_or_default().into())
            }
            _ => Finished::Completed,
        })
    }
    .boxed_local()
}
