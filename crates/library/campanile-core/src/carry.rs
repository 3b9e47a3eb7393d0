//! Requests that can carry a lock.

use std::ops::{Deref, DerefMut};

use http::Extensions;

use crate::error::NoLock;
use crate::{Interrupt, LockHandle, Request};

/// A request that can hold the lock that the idempotency layer acquires for it.
///
/// Implemented by [`Request`], [`http::Request`] and [`WithLock`]. Implement it for your own request
/// types; wrap foreign types in [`WithLock`] with tower's `map_request`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no room for a lock",
    note = "for a `Record`: put a `DecodeLayer` outside the `IdempotencyLayer`",
    note = "for a type of your own: implement `CarryLock`; for a foreign one: \
            `.map_request(WithLock::new)` outside the layer"
)]
pub trait CarryLock {
    /// Stores the lock in the request. Called before the inner service.
    fn set_lock(&mut self, lock: LockHandle);

    /// Returns the lock, if one was set.
    fn lock_handle(&self) -> Option<&LockHandle>;

    /// Returns the lock, for handlers that need one.
    ///
    /// # Errors
    /// Fails if none was set.
    fn lock(&self) -> Result<&LockHandle, NoLock> {
        self.lock_handle().ok_or(NoLock)
    }

    /// The driver marks a drop as an interruption, and not as a failure, through this handle.
    #[doc(hidden)]
    fn interrupt(&self) -> Option<Interrupt> {
        None
    }
}

impl<B> CarryLock for Request<B> {
    fn set_lock(&mut self, lock: LockHandle) {
        Request::set_lock(self, lock);
    }

    fn lock_handle(&self) -> Option<&LockHandle> {
        Request::lock(self).ok()
    }

    fn interrupt(&self) -> Option<Interrupt> {
        Some(self.record().attempt().interrupt())
    }
}

impl<B> CarryLock for http::Request<B> {
    fn set_lock(&mut self, lock: LockHandle) {
        self.extensions_mut().insert(lock);
    }

    fn lock_handle(&self) -> Option<&LockHandle> {
        self.extensions().get()
    }
}

/// A wrapper that adds a lock and extensions to a request of any type.
///
/// ```
/// use campanile_core::WithLock;
///
/// let job = WithLock::new(String::from("job-1"));
/// assert_eq!(job.len(), 5); // derefs to the inner request
/// assert_eq!(job.into_inner(), "job-1");
/// ```
#[derive(Clone, Debug)]
pub struct WithLock<T> {
    inner: T,
    lock: Option<LockHandle>,
    extensions: Extensions,
}

impl<T> WithLock<T> {
    /// Wraps a request.
    pub fn new(inner: T) -> Self {
        Self { inner, lock: None, extensions: Extensions::new() }
    }

    /// Unwraps the request, without its lock and its extensions.
    pub fn into_inner(self) -> T {
        self.inner
    }

    /// Borrows the extensions set by outer layers.
    ///
    /// This is an associated function because the inner type may have a method of the same name.
    pub fn extensions(this: &Self) -> &Extensions {
        &this.extensions
    }

    /// Mutably borrows the extensions set by outer layers.
    pub fn extensions_mut(this: &mut Self) -> &mut Extensions {
        &mut this.extensions
    }
}

impl<T> Deref for WithLock<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for WithLock<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> CarryLock for WithLock<T> {
    fn set_lock(&mut self, lock: LockHandle) {
        self.lock = Some(lock);
    }

    fn lock_handle(&self) -> Option<&LockHandle> {
        self.lock.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Record;
    use crate::lock::tests::new_lock;

    fn check<R: CarryLock>(mut request: R) {
        assert!(request.lock().is_err());
        request.set_lock(new_lock());
        assert_eq!(request.lock().ok().map(LockHandle::token), Some(new_lock().token()));
    }

    #[test]
    fn every_request_keeps_its_lock() {
        check(Request::new(Record::builder("t", 0, 0).build(), ()));
        check(http::Request::new(()));
        check(WithLock::new(()));
    }

    #[test]
    fn wrapped_request_is_accessible() {
        let mut job = WithLock::new(vec![1]);
        job.push(2);
        WithLock::extensions_mut(&mut job).insert("kept");
        assert_eq!(WithLock::extensions(&job).get::<&str>(), Some(&"kept"));
        assert!(job.interrupt().is_none());
        assert_eq!(job.into_inner(), [1, 2]);
    }

    #[test]
    fn interrupt_is_that_of_the_record() {
        let record = Record::builder("t", 0, 7).build();
        let interrupt = CarryLock::interrupt(&Request::new(record, ()));
        assert_eq!(interrupt.map(|interrupt| interrupt.record().offset()), Some(7));
    }
}
