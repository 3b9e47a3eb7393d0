//! The provided decoders.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::Decode;
use super::error::NullPayload;
use crate::{BoxError, Record};

/// A decoder for JSON, with serde. A null payload is an error.
pub struct Json<T>(JsonFn<T>);

// A function pointer, so that `Json<T>` needs no bound on `T` and a body without `Deserialize`
// causes one compiler error and not two.
type JsonFn<T> = fn(&[u8]) -> Result<T, serde_json::Error>;

impl<T: DeserializeOwned> Json<T> {
    pub(super) fn new() -> Self {
        Self(|bytes| serde_json::from_slice(bytes))
    }
}

impl<T> Decode for Json<T> {
    type Body = T;

    fn decode(&self, record: &Record) -> Result<T, BoxError> {
        let payload = record.payload().ok_or(NullPayload)?;
        (self.0)(payload).map_err(|error| NotJson::new(&error).into())
    }
}

impl<T> Clone for Json<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Json<T> {}

impl<T> fmt::Debug for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json<{}>", std::any::type_name::<T>())
    }
}

/// A payload that is not valid JSON, or does not match the body's type. Contains the kind and
/// position of the error.
///
/// serde's own messages can contain parts of the payload (`invalid type: string "…"`), so they are
/// not used. The only exception is the name of a missing field, which comes from the body's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJson {
    kind: String,
    line: usize,
    column: usize,
}

impl NotJson {
    fn new(error: &serde_json::Error) -> Self {
        use serde_json::error::Category;
        let text = error.to_string();
        let missing = text
            .strip_prefix("missing field `")
            .and_then(|rest| rest.split_once('`'))
            .map(|(field, _)| format!("missing field `{field}`"));
        let kind = match error.classify() {
            Category::Syntax => "syntax error".to_owned(),
            Category::Eof => "unexpected end of input".to_owned(),
            Category::Data | Category::Io => {
                missing.unwrap_or_else(|| "value of the wrong type or shape".to_owned())
            }
        };
        // At the end of the input, or of a line, the parser may count from 0.
        Self { kind, line: error.line().max(1), column: error.column().max(1) }
    }

    /// Returns the line of the error, starting at 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the column of the error, starting at 1.
    pub fn column(&self) -> usize {
        self.column
    }
}

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "failed to deserialize JSON: {} at line {} column {}",
            self.kind, self.line, self.column
        )
    }
}

impl Error for NotJson {}

/// A decoder that passes on the bytes of the payload. A null payload is an error.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes;

impl Decode for RawBytes {
    type Body = Bytes;

    fn decode(&self, record: &Record) -> Result<Bytes, BoxError> {
        Ok(record.payload().cloned().ok_or(NullPayload)?)
    }
}

/// A decoder that leaves the payload unchanged. Never fails.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Decode for Raw {
    type Body = Option<Bytes>;

    fn decode(&self, record: &Record) -> Result<Option<Bytes>, BoxError> {
        Ok(record.payload().cloned())
    }
}

/// A decoder that decodes a null payload to `None`, and any other payload to `Some`.
#[derive(Clone, Copy, Debug)]
pub struct Tombstones<D>(pub(super) D);

impl<D: Decode> Decode for Tombstones<D> {
    type Body = Option<D::Body>;

    fn decode(&self, record: &Record) -> Result<Option<D::Body>, BoxError> {
        record.payload().map(|_| self.0.decode(record)).transpose()
    }
}
