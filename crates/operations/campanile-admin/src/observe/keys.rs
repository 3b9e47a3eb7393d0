//! The keys of the records that were read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroI64;
use std::time::Duration;

use campanile_core::{Coordinates, Fingerprint, Record, Timestamp, millis};

/// The first record with each key. With 48 bytes for a key and its record, the table needs 56 to 112
/// bytes for each key, and half as much again while it grows.
#[derive(Default)]
pub(super) struct Keys(HashMap<[u8; 16], First>);

/// The first record with a key.
struct First {
    offset: i64,
    /// Milliseconds since 1970. `None` also for a producer that sends zero.
    time: Option<NonZeroI64>,
    fingerprint: Fingerprint,
    partition: i32,
    /// Whether the entry of the key was read, for this record or for a later one with the key.
    is_judged: bool,
}

/// What is known of the key of a record before its entry is read.
#[derive(Debug)]
pub(super) struct Noted {
    /// If the record is not the first one with its key.
    pub(super) repeat: Option<Repeat>,
    /// Whether the entry of the key must be read now.
    pub(super) is_judged_now: bool,
}

/// How a record differs from the first one with the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    pub(super) first: Coordinates,
    pub(super) has_same_payload: bool,
    /// The time between the two. `None` if one of them has no timestamp.
    pub(super) time: Option<Duration>,
    /// The number of offsets between the two, if they are in the same partition.
    pub(super) offsets: Option<u64>,
}

impl Keys {
    /// Notes that this record has the key with this digest. The entry of a key is read once, for the first
    /// of its records that is finished.
    pub(super) fn note(
        &mut self,
        digest: [u8; 16],
        record: &Record,
        fingerprint: Fingerprint,
        is_finished: bool,
    ) -> Noted {
        let Coordinates { topic, partition, offset } = record.coordinates();
        let time = record.timestamp().and_then(|time| {
            let (Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time)) = time;
            NonZeroI64::new(millis::of(time))
        });
        let first = match self.0.entry(digest) {
            Entry::Vacant(vacant) => {
                let (offset, partition) = (*offset, *partition);
                let is_judged = is_finished;
                vacant.insert(First { offset, time, fingerprint, partition, is_judged });
                return Noted { repeat: None, is_judged_now: is_finished };
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        let is_judged_now = is_finished && !first.is_judged;
        first.is_judged |= is_finished;
        let between = |one: NonZeroI64, other: NonZeroI64| {
            Duration::from_millis(one.get().abs_diff(other.get()))
        };
        let at =
            Coordinates { topic: topic.clone(), partition: first.partition, offset: first.offset };
        let repeat = Repeat {
            first: at,
            has_same_payload: first.fingerprint == fingerprint,
            time: first.time.zip(time).map(|(one, other)| between(one, other)),
            offsets: (first.partition == *partition).then(|| first.offset.abs_diff(*offset)),
        };
        Noted { repeat: Some(repeat), is_judged_now }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn record(partition: i32, offset: i64, millis: u64) -> Record {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let record = Record::builder("payments", partition, offset);
        record.timestamp(Timestamp::CreateTime(time)).build()
    }

    #[test]
    fn key_takes_the_documented_memory() {
        assert_eq!(size_of::<([u8; 16], First)>(), 48);
    }

    #[test]
    fn repeat_is_compared_with_the_first_record() {
        let mut keys = Keys::default();
        let (one, other) = (Fingerprint::of(b"1"), Fingerprint::of(b"2"));
        assert_eq!(keys.note([1; 16], &record(0, 3, 5_000), one, true).repeat, None);
        assert_eq!(keys.note([2; 16], &record(0, 4, 5_000), one, true).repeat, None);
        let mut repeat = |record: Record, fingerprint| {
            keys.note([1; 16], &record, fingerprint, true).repeat.unwrap()
        };
        let first = Repeat {
            first: "payments/0@3".parse().unwrap(),
            has_same_payload: true,
            time: Some(Duration::from_millis(1_500)),
            offsets: Some(4),
        };
        assert_eq!(repeat(record(0, 7, 6_500), one), first);
        let elsewhere = Repeat { offsets: None, has_same_payload: false, ..first };
        assert_eq!(repeat(record(1, 0, 3_500), other), elsewhere);
        let timeless = repeat(Record::builder("payments", 1, 1).build(), other);
        assert_eq!(timeless, Repeat { time: None, ..elsewhere });
        assert_eq!(keys.len(), 2);
    }

    #[test]
    fn entry_is_read_once_for_the_first_finished_record() {
        let mut keys = Keys::default();
        let mut note = |offset, is_finished| {
            let record = record(0, offset, 1);
            keys.note([1; 16], &record, Fingerprint::of(b""), is_finished).is_judged_now
        };
        assert_eq!([note(0, false), note(1, true), note(2, true)], [false, true, false]);
    }
}
