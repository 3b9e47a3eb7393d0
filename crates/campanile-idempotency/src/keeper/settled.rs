//! Waiting for the holder of a key to end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::sync::oneshot;

use super::ends::End;

/// Resolves when the holder of a key has ended, however it did: try again then.
///
/// Keep it until that was answered: as long as somebody has it, the keeper knows how the holder ended
/// and answers the key from that, without a command to the store.
///
/// # Cancellation
/// It may be dropped at any time. Waiting writes nothing.
#[derive(Clone)]
pub struct Settled {
    signal: Shared<oneshot::Receiver<()>>,
    end: Arc<OnceLock<End>>,
}

impl Settled {
    /// The signal, and what sets it off by being dropped.
    pub(super) fn pair() -> (oneshot::Sender<()>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self { signal: receiver.shared(), end: Arc::default() })
    }

    /// Says how the holder has ended. `None`: nobody else has the signal.
    pub(super) fn tell(&self, end: End) -> Option<Weak<OnceLock<End>>> {
        if Arc::strong_count(&self.end) == 1 {
            return None;
        }
        // Told once: each acquisition has a signal of its own.
        let _ = self.end.set(end);
        Some(Arc::downgrade(&self.end))
    }
}

impl Future for Settled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.signal.poll_unpin(cx).map(|_| ())
    }
}

impl fmt::Debug for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settled({})", self.signal.peek().is_some())
    }
}
