//! Fuzz target: rows of the database.

mod server;

use std::panic::AssertUnwindSafe;
use std::time::{Duration, SystemTime};

use campanile_core::{Entry, Owner, State};
use tokio_postgres::Row;

use self::server::Server;
use crate::response::{Found, Response, read_found};
use crate::wire::{BOOL, BYTEA, CHAR, Cells, Column, INT2, INT4, INT8, TIMESTAMPTZ};

/// The columns of an answer and of the table, with the identifiers of their types.
const COLUMNS: &[Column] = &[
    ("place", INT4),
    ("now", TIMESTAMPTZ),
    ("token", INT8),
    ("owner", INT8),
    ("fingerprint", INT8),
    ("created", TIMESTAMPTZ),
    ("at", TIMESTAMPTZ),
    ("attempt", INT4),
    ("interrupts", INT2),
    ("give_ups", INT2),
    ("state", CHAR),
    ("giving_up", BOOL),
    ("permanent_failure", BOOL),
    ("released", BOOL),
    ("error", BYTEA),
    ("reply", BYTEA),
    ("details", BYTEA),
];

/// The number of keys of the call.
const KEYS: usize = 3;

/// The bytes are the cells of rows, each as its length and its value. With length 255, a cell is null.
#[test]
fn rows() {
    let server = AssertUnwindSafe(Server::start(COLUMNS));
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/rows")).for_each(
        |bytes: &[u8]| {
            let sent = cells(bytes);
            let rows = server.query(&sent);
            assert_eq!(rows.len(), sent.len());
            for (row, cells) in rows.iter().zip(&sent) {
                if let Ok(found) = read_found(row) {
                    check_found(&found, cells);
                }
            }
            if let Ok(response) = Response::read(&rows, KEYS) {
                check_response(&response, &rows);
            }
        },
    );
}

fn cells(mut bytes: &[u8]) -> Vec<Cells> {
    let mut rows = Vec::new();
    while !bytes.is_empty() && rows.len() < 2 * KEYS {
        let mut cell = || {
            let (&len, rest) = bytes.split_first()?;
            let (value, rest) =
                rest.split_at(usize::from(len).min(rest.len()) * usize::from(len < 255));
            bytes = rest;
            (len < 255).then(|| value.to_vec())
        };
        rows.push(COLUMNS.iter().map(|_| cell()).collect());
    }
    rows
}

/// All rows are those of keys that the function was given.
fn check_response(response: &Response, rows: &[Row]) {
    let far = Duration::from_secs(1 << 45);
    assert!(response.now() < SystemTime::UNIX_EPOCH + far);
    for row in &rows[1..] {
        let place: i32 = row.get("place");
        let position = usize::try_from(place - 1).expect("from 1");
        assert!(position < KEYS && response.get(position).is_some());
    }
    assert!(response.get(KEYS).is_none());
}

/// The entry has what the row has. Without a state it is absent, and with an unknown one unreadable.
fn check_found(found: &Found, cells: &Cells) {
    let cell = |name| cells[COLUMNS.iter().position(|(it, _)| *it == name).unwrap()].as_deref();
    let number = |name| cell(name).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
    let flag = |name| cell(name).unwrap() != [0];
    let state = match cell("state") {
        None => return assert!(matches!(found, Found::Absent)),
        Some(b"P") => Some(State::Processing),
        Some(b"R") => Some(State::Retrying),
        Some(b"C") => Some(State::Completed),
        Some(b"F") => Some(State::Failed),
        Some(_) => None,
    };
    let entry = match (found, state) {
        (Found::Entry(entry), Some(state)) => {
            assert_eq!(entry.state(), state);
            entry
        }
        (Found::Unreadable(_), state) => {
            return assert!(state.is_none() || number("token") >= 1 << 53);
        }
        found => panic!("{found:?}"),
    };
    assert_eq!(Entry::from_bytes(&entry.to_bytes()).as_ref(), Ok(entry));
    assert_eq!(entry.token().get(), number("token"));
    assert_eq!(entry.owner(), Owner::new(number("owner")));
    assert_eq!(entry.fingerprint().map_or(0, |it| it.to_bits()), number("fingerprint"));
    assert_eq!(
        [entry.is_give_up(), entry.has_permanent_failure(), entry.is_released()],
        ["giving_up", "permanent_failure", "released"].map(flag)
    );
    assert_eq!(entry.reply().map(|reply| &reply[..]), cell("reply"));
    assert_eq!(entry.details().map(|details| details.as_bytes()), cell("details"));
    if cell("reply").is_none() {
        let error = cell("error").filter(|error| !error.is_empty()).map(String::from_utf8_lossy);
        assert_eq!(entry.error(), error);
    }
    let attempt = i32::from_be_bytes(cell("attempt").unwrap().try_into().unwrap());
    assert_eq!(entry.attempt(), u16::try_from(attempt).unwrap_or(u16::MAX));
}
