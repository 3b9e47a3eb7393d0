//! What goes through the tower stack.

use bytes::Bytes;
use http::Extensions;

use crate::{Lock, Record};

/// A record on its way: with its body, its lock once it has one, and extensions.
///
/// ```
/// use campanile_core::{Record, Request};
///
/// let request = Request::new(Record::builder("t", 0, 1).build(), "body").map(str::len);
/// assert_eq!(*request.body(), 4);
/// assert!(request.lock().is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Request<B = Option<Bytes>> {
    parts: Parts,
    body: B,
}

/// All of a [`Request`] but its body.
#[derive(Clone, Debug)]
pub struct Parts {
    /// What came from Kafka.
    pub record: Record,
    /// The lock under which it is processed.
    pub lock: Option<Lock>,
    /// What layers hand on.
    pub extensions: Extensions,
}

impl<B> Request<B> {
    /// A request without a lock.
    pub fn new(record: Record, body: B) -> Self {
        Self { parts: Parts { record, lock: None, extensions: Extensions::new() }, body }
    }

    /// What came from Kafka.
    pub fn record(&self) -> &Record {
        &self.parts.record
    }

    /// The body.
    pub fn body(&self) -> &B {
        &self.body
    }

    /// The body, to change it.
    pub fn body_mut(&mut self) -> &mut B {
        &mut self.body
    }

    /// The body alone.
    pub fn into_body(self) -> B {
        self.body
    }

    /// The lock under which this is processed: token, attempt, and whether it is still ours.
    ///
    /// `None` outside the idempotency layer, and where a policy let the record through unguarded.
    pub fn lock(&self) -> Option<&Lock> {
        self.parts.lock.as_ref()
    }

    /// Puts the lock in; the idempotency layer does that.
    pub fn set_lock(&mut self, lock: Lock) {
        self.parts.lock = Some(lock);
    }

    /// What layers outside handed on.
    pub fn extensions(&self) -> &Extensions {
        &self.parts.extensions
    }

    /// What layers outside handed on, to add to it.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.parts.extensions
    }

    /// The same with another body.
    pub fn map<C>(self, f: impl FnOnce(B) -> C) -> Request<C> {
        Request { parts: self.parts, body: f(self.body) }
    }

    /// Takes it apart.
    pub fn into_parts(self) -> (Parts, B) {
        (self.parts, self.body)
    }

    /// Puts it together.
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

/// A [`Record`] or a [`Request`] of any body: what [`DecodeLayer`](crate::DecodeLayer) takes in.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a `Record` nor a `Request`",
    note = "`DecodeLayer` decodes the record of a `Record` or of a `Request<B>`"
)]
pub trait IntoParts: sealed::Sealed {
    /// The request without its body.
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
