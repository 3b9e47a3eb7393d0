//! A future that resolves when a lock is lost.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::LockHandle;
use crate::LockLost;
use crate::wakers::{Wakers, Watch, Watcher};

/// A future that resolves when the lock is lost, and stays pending if it never is. Returned by
/// [`LockHandle::lost`].
///
/// # Cancellation
/// Dropping the future has no effect on the lock, or on clones of the future.
#[derive(Clone)]
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct LostFuture(Watcher<LockHandle>);

impl LostFuture {
    pub(super) fn new(lock: LockHandle) -> Self {
        Self(Watcher::new(lock))
    }
}

impl Watch for LockHandle {
    fn wakers(&self) -> &Wakers {
        &self.0.wakers
    }
}

impl Future for LostFuture {
    type Output = LockLost;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LockLost> {
        self.get_mut().0.poll(cx, LockHandle::loss)
    }
}

impl fmt::Debug for LostFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LostFuture").field(self.0.get()).finish()
    }
}
