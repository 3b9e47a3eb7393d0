//! A future that resolves when a lock is lost.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Lock;
use crate::LockLost;
use crate::wakers::{Wakers, Watch, Watcher};

/// A future that resolves when the lock is lost, and stays pending if it never is. Returned by
/// [`Lock::lost`].
///
/// # Cancellation
/// Dropping the future has no effect on the lock, or on clones of the future.
#[derive(Clone)]
pub struct Lost(Watcher<Lock>);

impl Lost {
    pub(super) fn new(lock: Lock) -> Self {
        Self(Watcher::new(lock))
    }
}

impl Watch for Lock {
    fn wakers(&self) -> &Wakers {
        &self.0.wakers
    }
}

impl Future for Lost {
    type Output = LockLost;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LockLost> {
        self.get_mut().0.poll(cx, Lock::loss)
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lost").field(self.0.get()).finish()
    }
}
