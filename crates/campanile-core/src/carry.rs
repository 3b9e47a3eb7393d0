//! Requests that can carry a lock.

use std::ops::{Deref, DerefMut};

use http::Extensions;

use crate::{Interrupt, Lock, Request};

/// A request into which the idempotency layer can put the lock.
///
/// [`Request`], [`http::Request`] and [`Guarded`] are such. Implement it for a request type of your
/// own; wrap a foreign one in [`Guarded`] by tower's `map_request`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no room for a lock",
    note = "for a `Record`: put a `DecodeLayer` outside the `IdempotencyLayer`",
    note = "for a type of your own: implement `CarryLock`; for a foreign one: \
            `.map_request(Guarded::new)` outside the layer"
)]
pub trait CarryLock {
    /// Puts the lock in, before the inner service is called.
    fn set_lock(&mut self, lock: Lock);

    /// The lock that was put in.
    fn lock(&self) -> Option<&Lock>;

    /// How the one who drives the request says that a drop is an interruption, not a failure.
    #[doc(hidden)]
    fn interrupt(&self) -> Option<Interrupt> {
        None
    }
}

impl<B> CarryLock for Request<B> {
    fn set_lock(&mut self, lock: Lock) {
        Request::set_lock(self, lock);
    }

    fn lock(&self) -> Option<&Lock> {
        Request::lock(self)
    }

    fn interrupt(&self) -> Option<Interrupt> {
        Some(self.record().interrupt())
    }
}

impl<B> CarryLock for http::Request<B> {
    fn set_lock(&mut self, lock: Lock) {
        self.extensions_mut().insert(lock);
    }

    fn lock(&self) -> Option<&Lock> {
        self.extensions().get()
    }
}

/// A request of any type, with room for a lock, and for what else layers hand on.
///
/// ```
/// use campanile_core::Guarded;
///
/// let job = Guarded::new(String::from("job-1"));
/// assert_eq!(job.len(), 5); // it derefs to what it wraps
/// assert_eq!(job.into_inner(), "job-1");
/// ```
#[derive(Clone, Debug)]
pub struct Guarded<T> {
    inner: T,
    lock: Option<Lock>,
    extensions: Extensions,
}

impl<T> Guarded<T> {
    /// Wraps it.
    pub fn new(inner: T) -> Self {
        Self { inner, lock: None, extensions: Extensions::new() }
    }

    /// What was wrapped.
    pub fn into_inner(self) -> T {
        self.inner
    }

    /// What layers outside handed on. No method, for what it derefs to may have one of this name.
    pub fn extensions(this: &Self) -> &Extensions {
        &this.extensions
    }

    /// What layers outside handed on, to add to it.
    pub fn extensions_mut(this: &mut Self) -> &mut Extensions {
        &mut this.extensions
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> CarryLock for Guarded<T> {
    fn set_lock(&mut self, lock: Lock) {
        self.lock = Some(lock);
    }

    fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }
}
