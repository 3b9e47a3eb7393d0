//! Waiting for the loss of a lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Lock;
use crate::LockLost;

/// Resolves when the lock is lost; pending for ever if it never is. Made by [`Lock::lost`].
///
/// # Cancellation
/// It may be dropped at any time; a clone waits for itself.
pub struct Lost {
    lock: Lock,
    /// The place of this one's waker.
    slot: Option<usize>,
}

impl Lost {
    pub(super) fn new(lock: Lock) -> Self {
        Self { lock, slot: None }
    }
}

impl Future for Lost {
    type Output = LockLost;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LockLost> {
        let this = self.get_mut();
        // First the waker, then the look: a loss in between finds the waker.
        this.lock.0.wakers.register(&mut this.slot, cx.waker());
        match this.lock.loss() {
            Some(loss) => Poll::Ready(loss),
            None => Poll::Pending,
        }
    }
}

impl Clone for Lost {
    fn clone(&self) -> Self {
        Self::new(self.lock.clone())
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.lock.0.wakers.remove(slot);
        }
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lost").field(&self.lock).finish()
    }
}
