//! The decoders that come along.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::Decode;
use super::error::NullPayload;
use crate::{BoxError, Record};

/// JSON by serde. A null payload is an error.
pub struct Json<T>(JsonFn<T>);

// A pointer to the function, so that `Json<T>` needs no bound of its own on `T`, and a body
// without `Deserialize` is one error message and not two.
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

/// A payload that is not JSON, or not of the body's shape: what kind of fault, and where.
///
/// serde's own text can show parts of the payload (`invalid type: string "…"`), so it is not taken
/// over, but for the name of a field that is missing, which comes from the body's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJson {
    what: String,
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
        let what = match error.classify() {
            Category::Syntax => "a syntax error".to_owned(),
            Category::Eof => "an unexpected end".to_owned(),
            Category::Data | Category::Io => {
                missing.unwrap_or_else(|| "a value of the wrong type or shape".to_owned())
            }
        };
        Self { what, line: error.line(), column: error.column() }
    }

    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column, from 1.
    pub fn column(&self) -> usize {
        self.column
    }
}

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not the expected JSON: {} at line {} column {}",
            self.what, self.line, self.column
        )
    }
}

impl Error for NotJson {}

/// The payload's bytes. A null payload is an error.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes;

impl Decode for RawBytes {
    type Body = Bytes;

    fn decode(&self, record: &Record) -> Result<Bytes, BoxError> {
        Ok(record.payload().cloned().ok_or(NullPayload)?)
    }
}

/// The payload as it is. Cannot fail.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Decode for Raw {
    type Body = Option<Bytes>;

    fn decode(&self, record: &Record) -> Result<Option<Bytes>, BoxError> {
        Ok(record.payload().cloned())
    }
}

/// `None` for a null payload, `Some` of the decoded body otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Tombstones<D>(pub(super) D);

impl<D: Decode> Decode for Tombstones<D> {
    type Body = Option<D::Body>;

    fn decode(&self, record: &Record) -> Result<Option<D::Body>, BoxError> {
        record.payload().map(|_| self.0.decode(record)).transpose()
    }
}
