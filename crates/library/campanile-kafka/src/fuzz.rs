//! The records of the fuzz targets.

use std::time::{Duration, SystemTime};

use campanile_core::{Record, RecordBuilder, Timestamp, millis};

/// Builds a record of `payments/3@42` from any bytes: its timestamp and its payload, then headers. A
/// header is the number of a name, the length of the value, and the value.
pub(crate) fn record(bytes: &[u8], names: &[&str]) -> RecordBuilder {
    let mut record = Record::builder("payments", 3, 42).key("key");
    let Some((&[kind, ref time @ ..], mut rest)) = bytes.split_first_chunk::<9>() else {
        return record;
    };
    let time = millis::time(i64::from_be_bytes(*time)).unwrap_or(SystemTime::UNIX_EPOCH);
    match kind % 4 {
        0 => {}
        1 => record = record.timestamp(Timestamp::CreateTime(time)),
        2 => record = record.timestamp(Timestamp::LogAppendTime(time)),
        _ => record = record.timestamp(Timestamp::CreateTime(time + Duration::from_nanos(1))),
    }
    if kind >= 128 {
        record = record.payload(vec![kind]);
    }
    while let [name, len, after @ ..] = rest {
        let name = names[usize::from(*name) % names.len()];
        let (value, next) = after.split_at(usize::from(*len).min(after.len()));
        record = match len {
            255 => record.null_header(name),
            _ => record.header(name, value.to_vec()),
        };
        rest = next;
    }
    record
}
