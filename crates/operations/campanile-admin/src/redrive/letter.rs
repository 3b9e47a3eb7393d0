//! One letter, and what is to be done with it.

use std::borrow::Cow;
use std::time::SystemTime;

use bytes::Bytes;
use campanile_core::{FencingToken, Output, Record, StoreKey, Timestamp};
use campanile_kafka::{InvalidLetter, LetterHeaders};

use super::Redrive;

/// Counts how often a record was produced back. It is a header of the record, so it is also one of
/// the record's next dead letter.
const REDRIVES: &str = "campanile-redrives";

/// A record of the dead-letter topic.
#[derive(Clone)]
pub(super) struct Letter {
    pub(super) record: Record,
    pub(super) headers: Result<LetterHeaders, InvalidLetter>,
}

/// What is to be done with a letter, as far as the letter itself decides it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Not selected.
    Filter,
    /// Reopen the key, then produce the record.
    Reopen { key: StoreKey, token: FencingToken },
    /// Produce the record, which held no lock.
    Produce,
    /// Do not produce the record, for this reason.
    Park(Cow<'static, str>),
}

impl Letter {
    pub(super) fn new(record: Record) -> Self {
        let headers = LetterHeaders::read(&record);
        Self { record, headers }
    }

    pub(super) fn plan(&self, settings: &Redrive) -> Plan {
        if !settings.filter.matches(self) {
            return Plan::Filter;
        }
        let headers = match &self.headers {
            Ok(headers) => headers,
            Err(invalid) => return Plan::Park(invalid.to_string().into()),
        };
        if headers.is_truncated {
            return Plan::Park("published without its payload: see the original record".into());
        }
        let redrives = self.redrives();
        if redrives >= settings.max_redrives {
            return Plan::Park(format!("brought back {redrives} times already").into());
        }
        match (&headers.key, &headers.lock) {
            (Some(key), Some(lock)) => {
                let key = StoreKey::new(lock.namespace.clone(), key);
                Plan::Reopen { key, token: lock.token }
            }
            _ if settings.without_key => Plan::Produce,
            _ => Plan::Park(format!("held no lock ({})", headers.cause).into()),
        }
    }

    /// The record as it is produced back. `None` if the letter does not contain it.
    pub(super) fn restore(&self) -> Option<Output> {
        let mut output = self.headers.as_ref().ok()?.restore(&self.record)?;
        output.headers.retain(|(name, _)| name != REDRIVES);
        Some(output.header(REDRIVES, (self.redrives().saturating_add(1)).to_string()))
    }

    /// The time of its record.
    pub(super) fn time(&self) -> Option<SystemTime> {
        let of_record = self.headers.as_ref().ok().and_then(|headers| headers.timestamp);
        of_record.or(self.record.timestamp()).map(|timestamp| match timestamp {
            Timestamp::CreateTime(at) | Timestamp::LogAppendTime(at) => at,
        })
    }

    /// A copy of the letter for another topic. It lives there from its publication, however old the letter
    /// is.
    pub(super) fn copy_to(&self, topic: &str) -> Output {
        let mut copy = Output::to(topic);
        copy.key = self.record.key().cloned();
        copy.payload = self.record.payload().cloned();
        let owned = |(name, value): (&str, Option<&Bytes>)| (name.to_owned(), value.cloned());
        copy.headers = self.record.headers().iter().map(owned).collect();
        copy
    }

    fn redrives(&self) -> u32 {
        let redrives = self.record.headers().get_str(REDRIVES);
        redrives.and_then(|redrives| redrives.parse().ok()).unwrap_or(0)
    }
}
