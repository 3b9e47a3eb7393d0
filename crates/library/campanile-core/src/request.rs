//! The request type of the tower stack.

use bytes::Bytes;
use http::Extensions;

use crate::error::NoLock;
use crate::{LockHandle, Record};

/// A record with its decoded body, its lock once acquired, and extensions.
///
/// ```
/// use campanile_core::{Record, Request};
///
/// let request = Request::new(Record::builder("t", 0, 1).build(), "body").map(str::len);
/// assert_eq!(*request.body(), 4);
/// assert!(request.lock().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Request<B = Option<Bytes>> {
    parts: Parts,
    body: B,
}

/// All parts of a [`Request`] except its body.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The Kafka record.
    pub record: Record,
    /// The lock under which the request is processed.
    pub lock: Option<LockHandle>,
    /// Extensions set by layers.
    pub extensions: Extensions,
}

impl<B> Request<B> {
    /// Creates a request without a lock.
    pub fn new(record: Record, body: B) -> Self {
        Self { parts: Parts { record, lock: None, extensions: Extensions::new() }, body }
    }

    /// Returns the Kafka record.
    pub fn record(&self) -> &Record {
        &self.parts.record
    }

    /// Borrows the body.
    pub fn body(&self) -> &B {
        &self.body
    }

    /// Mutably borrows the body.
    pub fn body_mut(&mut self) -> &mut B {
        &mut self.body
    }

    /// Takes the body and discards the rest.
    pub fn into_body(self) -> B {
        self.body
    }

    /// Returns the lock under which the request is processed, with its token, its attempt, and
    /// whether it is still held.
    ///
    /// # Errors
    /// Fails outside the idempotency layer, and if a policy let the record through without a lock.
    pub fn lock(&self) -> Result<&LockHandle, NoLock> {
        self.parts.lock.as_ref().ok_or(NoLock)
    }

    /// Sets the lock. Called by the idempotency layer.
    pub fn set_lock(&mut self, lock: LockHandle) {
        self.parts.lock = Some(lock);
    }

    /// Borrows the extensions set by outer layers.
    pub fn extensions(&self) -> &Extensions {
        &self.parts.extensions
    }

    /// Mutably borrows the extensions set by outer layers.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.parts.extensions
    }

    /// Maps the body and keeps everything else.
    pub fn map<C>(self, f: impl FnOnce(B) -> C) -> Request<C> {
        Request { parts: self.parts, body: f(self.body) }
    }

    /// Splits the request into its parts and its body.
    pub fn into_parts(self) -> (Parts, B) {
        (self.parts, self.body)
    }

    /// Creates a request from its parts and a body.
    pub fn from_parts(parts: Parts, body: B) -> Self {
        Self { parts, body }
    }
}

impl From<Record> for Request<Option<Bytes>> {
    fn from(record: Record) -> Self {
        let payload = record.payload().cloned();
        Self::new(record, payload)
    }
}

/// A [`Record`], or a [`Request`] with any body: the input of [`DecodeLayer`](crate::DecodeLayer).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a `Record` nor a `Request`",
    note = "`DecodeLayer` decodes the record of a `Record` or of a `Request<B>`"
)]
pub trait IntoParts: sealed::Sealed {
    /// Takes the request without its body.
    fn into_request_parts(self) -> Parts;
}

impl IntoParts for Record {
    fn into_request_parts(self) -> Parts {
        Request::new(self, ()).into_parts().0
    }
}

impl<B> IntoParts for Request<B> {
    fn into_request_parts(self) -> Parts {
        self.into_parts().0
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::Record {}
    impl<B> Sealed for super::Request<B> {}
}
