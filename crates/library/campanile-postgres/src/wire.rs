//! The messages of a Postgres server, for the tests that are one.

use bytes::{BufMut, BytesMut};

/// The binary values of a row; `None` is null.
pub(crate) type Cells = Vec<Option<Vec<u8>>>;

/// The name of a column, and the identifier of its type.
pub(crate) type Column = (&'static str, u32);

pub(crate) const BOOL: u32 = 16;
pub(crate) const BYTEA: u32 = 17;
pub(crate) const CHAR: u32 = 18;
pub(crate) const INT8: u32 = 20;
pub(crate) const INT2: u32 = 21;
pub(crate) const INT4: u32 = 23;
pub(crate) const TEXT: u32 = 25;
pub(crate) const BOOL_ARRAY: u32 = 1000;
pub(crate) const BYTEA_ARRAY: u32 = 1001;
pub(crate) const INT4_ARRAY: u32 = 1007;
pub(crate) const INT8_ARRAY: u32 = 1016;
pub(crate) const TIMESTAMPTZ: u32 = 1184;

/// Appends a message: its kind, its length, and what `put` appends.
pub(crate) fn message(out: &mut BytesMut, kind: u8, put: impl FnOnce(&mut BytesMut)) {
    let mut body = BytesMut::new();
    put(&mut body);
    out.put_u8(kind);
    out.put_i32(i32::try_from(body.len() + 4).unwrap());
    out.put_slice(&body);
}

/// Appends the successful end of the startup, without the first `ready`.
pub(crate) fn put_authenticated(out: &mut BytesMut) {
    message(out, b'R', |out| out.put_i32(0));
}

/// Appends that the next request may follow.
pub(crate) fn put_ready(out: &mut BytesMut) {
    message(out, b'Z', |out| out.put_u8(b'I'));
}

/// Appends the types of a statement's parameters.
pub(crate) fn put_parameters(out: &mut BytesMut, kinds: &[u32]) {
    message(out, b't', |out| {
        out.put_i16(i16::try_from(kinds.len()).unwrap());
        kinds.iter().for_each(|kind| out.put_u32(*kind));
    });
}

/// Appends the columns of a result in this format: 0 is text, and 1 binary.
pub(crate) fn put_columns(out: &mut BytesMut, columns: &[Column], format: i16) {
    message(out, b'T', |out| {
        out.put_i16(i16::try_from(columns.len()).unwrap());
        for (name, kind) in columns {
            out.put_slice(name.as_bytes());
            out.put_slice(b"\0\0\0\0\0\0\0"); // the end of the name, table and column
            out.put_u32(*kind);
            out.put_slice(b"\xff\xff\xff\xff\xff\xff"); // the size and the modifier
            out.put_i16(format);
        }
    });
}

pub(crate) fn put_row(out: &mut BytesMut, row: &Cells) {
    message(out, b'D', |out| {
        out.put_i16(i16::try_from(row.len()).unwrap());
        for cell in row {
            out.put_i32(cell.as_ref().map_or(-1, |cell| i32::try_from(cell.len()).unwrap()));
            out.put_slice(cell.as_deref().unwrap_or_default());
        }
    });
}

/// Appends the end of a result.
pub(crate) fn put_complete(out: &mut BytesMut) {
    message(out, b'C', |out| out.put_slice(b"SELECT 0\0"));
}
