//! Reads the headers of a dead letter, and restores its record.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use campanile_core::{
    Coordinates, FencingToken, Headers, IdempotencyKey, Namespace, Output, Record, Timestamp,
};

use super::{campanile, is_dead_letter_header, spring};

/// What the headers of a dead letter contain: where its record came from, why the record was given
/// up, and the lock under which it was.
///
/// `Debug` prints neither the key nor the error.
///
/// ```
/// use campanile_core::Record;
/// use campanile_kafka::LetterHeaders;
///
/// let letter = Record::builder("payments.dead", 0, 7)
///     .payload("p")
///     .header("campanile-cause", "undecodable")
///     .header("kafka_dlt-original-topic", "payments")
///     .header("kafka_dlt-original-partition", 3_i32.to_be_bytes().to_vec())
///     .header("kafka_dlt-original-offset", 42_i64.to_be_bytes().to_vec())
///     .build();
/// let headers = LetterHeaders::read(&letter)?;
/// assert_eq!(headers.origin.to_string(), "payments/3@42");
/// let record = headers.restore(&letter).expect("the letter has its payload");
/// assert_eq!((&*record.topic, record.headers.len()), ("payments", 0));
/// # Ok::<(), campanile_kafka::InvalidLetter>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LetterHeaders {
    /// The coordinates of the original record.
    pub origin: Coordinates,
    /// The timestamp of the original record. `None` if it had none.
    pub timestamp: Option<Timestamp>,
    /// The cause as one word: `failed`, `exhausted`, `missing-key`, `invalid-key`, `mismatch`,
    /// `undecodable` or `error`.
    pub cause: Box<str>,
    /// The error and its sources on one line, cut at 1 KiB.
    pub error: Option<Box<str>>,
    /// The idempotency key. `None` if the record has none, or if the letter is truncated and the key
    /// is large.
    pub key: Option<IdempotencyKey>,
    /// The lock under which the record was given up. `None` if it held none.
    pub lock: Option<LetterLock>,
    /// Whether the letter was published without its payload.
    pub is_truncated: bool,
}

/// The lock under which a record was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LetterLock {
    /// The namespace of the key.
    pub namespace: Namespace,
    /// The fencing token of the lock.
    pub token: FencingToken,
}

impl LetterHeaders {
    /// Reads the headers of a dead letter.
    ///
    /// # Errors
    /// Fails if the record is not a dead letter of Campanile, or if one of these headers is not
    /// valid.
    pub fn read(letter: &Record) -> Result<Self, InvalidLetter> {
        let headers = letter.headers();
        let cause = headers.get_str(campanile::CAUSE);
        let cause = cause.ok_or(InvalidLetter { header: campanile::CAUSE })?;
        let origin = spring::origin(headers);
        let origin = origin.ok_or(InvalidLetter { header: "kafka_dlt-original-topic" })?;
        Ok(Self {
            origin,
            timestamp: spring::original_timestamp(headers),
            cause: cause.into(),
            error: spring::message(headers).map(Into::into),
            key: headers
                .get(campanile::KEY)
                .and_then(|key| IdempotencyKey::new(Bytes::copy_from_slice(key))),
            lock: lock(headers)?,
            is_truncated: headers.all(campanile::TRUNCATED_PAYLOAD).next().is_some(),
        })
    }

    /// Restores the record of this letter, with its key, payload, timestamp and headers, as a
    /// message to its original topic. Its partition follows from its key. `None` if the letter is
    /// truncated.
    pub fn restore(&self, letter: &Record) -> Option<Output> {
        if self.is_truncated {
            return None;
        }
        let mut record = Output::to(self.origin.topic.clone());
        record.key = letter.key().cloned();
        record.payload = letter.payload().cloned();
        record.timestamp = self.timestamp.or(letter.timestamp());
        let own = letter.headers().iter().filter(|(name, _)| !is_dead_letter_header(name));
        record.headers = own.map(|(name, value)| (name.to_owned(), value.cloned())).collect();
        Some(record)
    }
}

fn lock(headers: &Headers) -> Result<Option<LetterLock>, InvalidLetter> {
    let invalid = |header| move || InvalidLetter { header };
    if headers.all(campanile::TOKEN).next().is_none() {
        return Ok(None);
    }
    let token = headers.get_str(campanile::TOKEN).and_then(|token| token.parse().ok());
    let token = token.and_then(FencingToken::new).ok_or_else(invalid(campanile::TOKEN))?;
    let namespace = headers.get_str(campanile::NAMESPACE);
    let namespace = namespace.and_then(|namespace| Namespace::try_from(namespace).ok());
    let namespace = namespace.ok_or_else(invalid(campanile::NAMESPACE))?;
    Ok(Some(LetterLock { namespace, token }))
}

impl fmt::Debug for LetterHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LetterHeaders")
            .field("origin", &self.origin)
            .field("cause", &self.cause)
            .field("lock", &self.lock)
            .field("is_truncated", &self.is_truncated)
            .finish_non_exhaustive()
    }
}

/// The error for a record that is not a dead letter of Campanile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLetter {
    header: &'static str,
}

impl fmt::Display for InvalidLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a dead letter: the header `{}` is missing or not valid", self.header)
    }
}

impl Error for InvalidLetter {}
