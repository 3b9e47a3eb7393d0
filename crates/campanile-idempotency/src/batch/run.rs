//! A batch at work, as a task of its own: one that blocks or panics is alone with it.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use campanile_core::BoxableError;
use futures_util::FutureExt;
use tokio::select;

use super::{BatchError, Reply};

/// To whom the results of a batch go, in its order.
pub(super) struct Replies<T>(pub(super) Vec<Reply<T>>);

impl<T> Replies<T> {
    /// The whole batch has failed.
    pub(super) fn fail(self, why: &BatchError) {
        for reply in self.0 {
            // Who has left does not care.
            let _ = reply.send(Err(why.clone().into()));
        }
    }

    /// Resolves when nobody waits for the batch any more.
    async fn all_left(&mut self) {
        for reply in &mut self.0 {
            reply.closed().await;
        }
    }
}

/// Runs it to its end, or until nobody waits for it.
pub(super) async fn run<F, T, E, Err>(future: F, mut replies: Replies<T>)
where
    F: Future<Output = Result<Vec<Result<T, E>>, Err>>,
    E: BoxableError,
    Err: BoxableError,
{
    // The future is dropped at the end of the `select!`, before anybody hears of a result: what it
    // holds is free when the locks are let go.
    let ended = select! {
        biased;
        ended = AssertUnwindSafe(future).catch_unwind() => ended,
        () = replies.all_left() => return,
    };
    let requests = replies.0.len();
    match ended {
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
