//! Waiting for the holder of a key to end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::sync::oneshot;

/// Resolves when the holder of a key has ended, however it did: try again then.
///
/// # Cancellation
/// It may be dropped at any time. Waiting writes nothing.
#[derive(Clone)]
pub struct Settled(Shared<oneshot::Receiver<()>>);

impl Settled {
    /// The signal, and what sets it off by being dropped.
    pub(super) fn pair() -> (oneshot::Sender<()>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver.shared()))
    }
}

impl Future for Settled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_unpin(cx).map(|_| ())
    }
}

impl fmt::Debug for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settled({})", self.0.peek().is_some())
    }
}
