//! Waiting for the end of another request's attempt.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::results::LocalResult;

/// Resolves when the holder of a key has ended, whatever the result. Retry the request then.
///
/// Keep the signal until the retried request is answered: while a clone of the signal exists, the
/// keeper remembers how the holder ended and answers requests for the key from that, without a
/// command to the store.
///
/// # Cancellation
/// It can be dropped at any time. Waiting writes nothing.
#[derive(Clone)]
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct SettledFuture {
    signal: Shared<oneshot::Receiver<()>>,
    result: Arc<OnceLock<LocalResult>>,
}

impl SettledFuture {
    /// Creates a signal, and the sender that triggers it when dropped.
    pub(super) fn pair() -> (oneshot::Sender<()>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self { signal: receiver.shared(), result: Arc::default() })
    }

    /// Sets how the holder has ended, unless there is no other clone of the signal.
    pub(super) fn set_result(&self, result: LocalResult) -> Option<Weak<OnceLock<LocalResult>>> {
        if Arc::strong_count(&self.result) == 1 {
            return None;
        }
        // Each acquisition has its own signal, which is set once.
        let _ = self.result.set(result);
        Some(Arc::downgrade(&self.result))
    }

    /// Waits until the holder has ended, for at most this time.
    ///
    /// # Cancellation
    /// As for the signal itself.
    pub async fn wait_at_most(self, at_most: Duration) {
        wait_at_most(Some(self), at_most).await;
    }
}

/// Waits for this time, or until the holder of the key in this process has ended, if there is one.
pub(crate) async fn wait_at_most(settled: Option<SettledFuture>, at_most: Duration) {
    match settled {
        Some(settled) => drop(timeout(at_most, settled).await),
        None => sleep(at_most).await,
    }
}

impl Future for SettledFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.signal.poll_unpin(cx).map(|_| ())
    }
}

impl fmt::Debug for SettledFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SettledFuture({})", self.signal.peek().is_some())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_ends_with_the_holder_or_after_its_time() {
        let (holder, settled) = SettledFuture::pair();
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        settled.clone().wait_at_most(second).await;
        assert_eq!(start.elapsed(), second);
        drop(holder);
        settled.wait_at_most(second).await;
        assert_eq!(start.elapsed(), second);
    }
}
