//! Where a record has its idempotency key.

use campanile_core::{BoxError, IdempotencyKey, IntoKey, KeyExtractor, Record, key};
use serde_json::Value;

/// Where a record has its idempotency key. It must be where the application's extractor finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// The last header with this name, as [`key::header`].
    Header(Box<str>),
    /// A string or an integer in a payload of JSON, at this pointer of RFC 6901, such as `/payment/id`,
    /// as [`key::field`] of a decoded body.
    JsonPointer(Box<str>),
    /// The coordinates of the record, as [`key::coordinates`].
    Coordinates,
    /// Kafka's key of the record, as [`key::record_key_only_first_record_counts`].
    RecordKey,
}

/// The header `idempotency-key`.
impl Default for KeySource {
    fn default() -> Self {
        Self::Header(key::HEADER.into())
    }
}

impl KeyExtractor<Record> for KeySource {
    fn extract(&self, record: &Record) -> Result<Option<IdempotencyKey>, BoxError> {
        match self {
            Self::Header(name) => key::header(name.clone()).extract(record),
            Self::JsonPointer(pointer) => json_key(record, pointer),
            Self::Coordinates => key::coordinates().extract(record),
            Self::RecordKey => key::record_key_only_first_record_counts().extract(record),
        }
    }
}

fn json_key(record: &Record, pointer: &str) -> Result<Option<IdempotencyKey>, BoxError> {
    let payload = record.payload().ok_or("the payload is null")?;
    // The error of the parser may contain parts of the payload.
    let body: Value = serde_json::from_slice(payload).map_err(|error| {
        format!("the payload is no JSON: line {}, column {}", error.line(), error.column())
    })?;
    match body.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => text.into_key(),
        Some(Value::Number(number)) if !number.is_f64() => number.to_string().into_key(),
        Some(_) => Err(format!("the value at {pointer} is neither a string nor an integer").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(payload: &'static str, pointer: &str) -> Result<Option<String>, String> {
        let record = Record::builder("payments", 3, 42).payload(payload).build();
        let key = KeySource::JsonPointer(pointer.into()).extract(&record);
        key.map(|key| key.map(|key| key.to_string())).map_err(|error| error.to_string())
    }

    #[test]
    fn json_value_is_the_key_that_the_application_extracts() {
        let payload = r#"{"payment":{"id":"p-1","number":-7},"none":null,"rate":1.5,"":""}"#;
        assert_eq!(json(payload, "/payment/id"), Ok(Some("p-1".into())));
        assert_eq!(json(payload, "/payment/number"), Ok(Some("-7".into())));
        for missing in ["/none", "/payment/other", "/"] {
            assert_eq!(json(payload, missing), Ok(None), "{missing}");
        }
        for invalid in ["/rate", "/payment"] {
            assert!(json(payload, invalid).unwrap_err().contains(invalid), "{invalid}");
        }
        assert!(json("secret", "/id").unwrap_err().ends_with("line 1, column 1"));
    }

    #[test]
    fn other_sources_are_those_of_the_core() {
        let record = Record::builder("payments", 3, 42).key("k").header("id", "p-1").build();
        let key = |source: KeySource| source.extract(&record).unwrap().unwrap().to_string();
        assert_eq!(key(KeySource::Header("id".into())), "p-1");
        assert_eq!(key(KeySource::Coordinates), "payments/3@42");
        assert_eq!(key(KeySource::RecordKey), "k");
    }
}
