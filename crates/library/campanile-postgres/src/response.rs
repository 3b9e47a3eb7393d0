//! The result of a call of a database function.

use std::time::{Duration, SystemTime};

use bytes::{BufMut, BytesMut};
use campanile_core::{Entry, Unreadable};
use tokio_postgres::{Error, Row};

use crate::failure::Failure;

/// The database's clock when it decided, and the entries, after the call, of all operations that
/// did not have the ordinary outcome.
#[derive(Debug)]
pub(crate) struct Response {
    now: SystemTime,
    /// Indexed by the key's position in the call.
    found: Vec<Option<(SystemTime, Found)>>,
}

/// What the table has for a key.
#[derive(Debug)]
pub(crate) enum Found {
    Absent,
    Entry(Entry),
    /// A row that the constraints of the table should have rejected.
    Unreadable(Unreadable),
}

impl Response {
    /// Reads the rows that a function returned for this number of keys.
    pub(crate) fn read(rows: &[Row], keys: usize) -> Result<Self, Failure> {
        let [first, rows @ ..] = rows else {
            return Err(Failure::Unexpected("a function did not return the server's clock"));
        };
        let mut response = Self { now: first.try_get("now")?, found: Vec::new() };
        for row in rows {
            let position: i32 = row.try_get("place")?;
            let position = usize::try_from(position).ok().and_then(|it| it.checked_sub(1));
            let Some(position) = position.filter(|position| *position < keys) else {
                return Err(Failure::Unexpected("a function returned a key that it was not given"));
            };
            if response.found.len() <= position {
                response.found.resize_with(position + 1, || None);
            }
            response.found[position] = Some((row.try_get("now")?, read_found(row)?));
        }
        Ok(response)
    }

    /// The time at which all operations with the ordinary outcome were decided.
    pub(crate) fn now(&self) -> SystemTime {
        self.now
    }

    /// The entry of the key at this position of the call, counted from 0, and when its operation
    /// was decided; `None` if the operation had the ordinary outcome.
    pub(crate) fn get(&self, position: usize) -> Option<&(SystemTime, Found)> {
        self.found.get(position)?.as_ref()
    }
}

/// Reads the entry of a row. Without a state there is none.
pub(crate) fn read_found(row: &Row) -> Result<Found, Error> {
    let Some(state) = row.try_get::<_, Option<i8>>("state")? else {
        return Ok(Found::Absent);
    };
    let entry = encode_entry(row, state.cast_unsigned())?;
    Ok(Entry::from_bytes(&entry).map_or_else(Found::Unreadable, Found::Entry))
}

/// Encodes the row in the format in which other stores keep an entry.
fn encode_entry(row: &Row, state: u8) -> Result<BytesMut, Error> {
    let (error, reply) = (row.try_get::<_, Option<&[u8]>>("error")?, row.try_get("reply")?);
    let details = read_optional(row, "details")?;
    let steps = read_optional(row, "steps")?;
    let (kind, tail) = match (details, reply, error) {
        (Some(_), Some(reply), _) => (4, reply),
        (Some(_), None, error) => (3, error.unwrap_or_default()),
        (None, Some(reply), _) => (2, reply),
        (None, None, Some(error)) => (1, error),
        (None, None, None) => (0, &[][..]),
    };
    let state = match state {
        b'P' => 1,
        b'R' => 2,
        b'C' => 3,
        b'F' => 4,
        _ => 0,
    };
    let flag = |name, bit: u8| Ok::<_, Error>(if row.try_get(name)? { bit } else { 0 });
    let bits = |name| Ok::<_, Error>(row.try_get::<_, Option<i64>>(name)?.unwrap_or(0));
    let created = since_epoch(row.try_get("created")?).as_secs();
    let at = since_epoch(row.try_get("at")?).as_micros();

    let details_len = details.map_or(0, <[u8]>::len);
    let steps_len = steps.map_or(0, <[u8]>::len);
    let mut bytes = BytesMut::with_capacity(51 + steps_len + details_len + tail.len());
    bytes.put_u8(0xC1);
    let giving_up = flag("giving_up", 8)?;
    bytes.put_u8(state | giving_up | flag("permanent_failure", 16)? | flag("released", 32)?);
    bytes.put_u16(u16::try_from(row.try_get::<_, i32>("attempt")?).unwrap_or(u16::MAX));
    bytes.put_u8(saturating_u8(row.try_get("interrupts")?));
    bytes.put_u8(saturating_u8(row.try_get("give_ups")?));
    bytes.put_u8(if steps.is_some() { 5 } else { kind });
    bytes.put_u8(0);
    for name in ["token", "owner", "fingerprint"] {
        bytes.put_i64(bits(name)?);
    }
    bytes.put_u32(created as u32); // the low 32 bits, as in every entry
    bytes.put_u64(u64::try_from(at).unwrap_or(u64::MAX));
    if let Some(steps) = steps {
        // The column's type allows no more than 64 KiB.
        bytes.put_u32(u32::try_from(steps_len).unwrap_or(u32::MAX));
        bytes.put_slice(steps);
        bytes.put_u8(kind);
    }
    if let Some(details) = details {
        // The column's type allows no more.
        let len = u16::try_from(details_len).unwrap_or(u16::MAX);
        bytes.put_u16(len);
        bytes.put_slice(&details[..len.into()]);
    }
    bytes.put_slice(tail);
    Ok(bytes)
}

/// Reads the details or the steps of a row. The result of most functions has neither, because only a few
/// replies depend on them.
fn read_optional<'a>(row: &'a Row, name: &str) -> Result<Option<&'a [u8]>, Error> {
    match row.columns().iter().position(|column| column.name() == name) {
        Some(index) => row.try_get(index),
        None => Ok(None),
    }
}

fn saturating_u8(number: i16) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
