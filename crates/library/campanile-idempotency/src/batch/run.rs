//! A running batch. It has its own task, so that blocking or panicking affects only this batch.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use campanile_core::BoxableError;
use futures_util::FutureExt;
use tokio::select;

use super::{BatchError, ReplySender};

/// The reply channels of a batch, in its order.
pub(super) struct Replies<T>(pub(super) Vec<ReplySender<T>>);

impl<T> Replies<T> {
    /// Fails every request of the batch.
    pub(super) fn fail(self, error: &BatchError) {
        for reply in self.0 {
            // The receiver may have been dropped.
            let _ = reply.send(Err(error.clone().into()));
        }
    }

    /// Resolves when all callers of the batch have dropped their futures.
    async fn all_closed(&mut self) {
        for reply in &mut self.0 {
            reply.closed().await;
        }
    }
}

/// Runs a batch until it ends or until all of its callers are gone.
pub(super) async fn run_batch<F, T, E, Err>(future: F, mut replies: Replies<T>)
where
    F: Future<Output = Result<Vec<Result<T, E>>, Err>>,
    E: BoxableError,
    Err: BoxableError,
{
    // The future is dropped at the end of the `select!`, before any result is delivered: its
    // resources are free when the locks are released.
    let output = select! {
        biased;
        output = AssertUnwindSafe(future).catch_unwind() => output,
        () = replies.all_closed() => return,
    };
    let requests = replies.0.len();
    match output {
        Ok(Ok(results)) if results.len() == requests => {
            for (reply, result) in replies.0.into_iter().zip(results) {
                let _ = reply.send(result.map_err(Into::into));
            }
        }
        Ok(Ok(results)) => {
            let results = results.len();
            replies.fail(&BatchError::WrongNumber { requests, results });
        }
        Ok(Err(error)) => replies.fail(&BatchError::failed(error)),
        Err(_) => replies.fail(&BatchError::Panicked),
    }
}
