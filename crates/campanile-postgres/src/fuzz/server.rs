//! A server that answers each query with given cells, over a connection in memory.

use std::sync::{Arc, Mutex};

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Config, NoTls, Row, Statement};

/// The binary values of a row; `None` is null.
pub(super) type Cells = Vec<Option<Vec<u8>>>;

/// The server, and a client with a prepared query.
pub(super) struct Server {
    runtime: Runtime,
    client: Client,
    statement: Statement,
    rows: Arc<Mutex<Vec<Cells>>>,
}

impl Server {
    pub(super) fn start(columns: &'static [(&'static str, u32)]) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rows = Arc::new(Mutex::new(Vec::new()));
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        runtime.spawn(serve(ours, columns, Arc::clone(&rows)));
        let (client, statement) = runtime.block_on(async {
            let mut config = Config::new();
            let (client, connection) = config.user("u").connect_raw(theirs, NoTls).await.unwrap();
            tokio::spawn(connection);
            let statement = client.prepare("SELECT").await.unwrap();
            (client, statement)
        });
        Self { runtime, client, statement, rows }
    }

    pub(super) fn query(&self, rows: &[Cells]) -> Vec<Row> {
        *self.rows.lock().unwrap() = rows.to_vec();
        self.runtime.block_on(self.client.query(&self.statement, &[])).unwrap()
    }
}

/// Answers what the client of a prepared query sends.
async fn serve(
    mut stream: DuplexStream,
    columns: &[(&str, u32)],
    rows: Arc<Mutex<Vec<Cells>>>,
) -> Option<()> {
    let length = stream.read_i32().await.ok()?;
    skip(&mut stream, length).await?;
    let mut out = BytesMut::new();
    message(&mut out, b'R', |out| out.put_i32(0));
    message(&mut out, b'Z', |out| out.put_u8(b'I'));
    loop {
        stream.write_all(&out).await.ok()?;
        out.clear();
        let kind = stream.read_u8().await.ok()?;
        let length = stream.read_i32().await.ok()?;
        skip(&mut stream, length).await?;
        match kind {
            b'P' => message(&mut out, b'1', |_| {}),
            b'D' => describe(&mut out, columns),
            b'B' => message(&mut out, b'2', |_| {}),
            b'E' => {
                rows.lock().unwrap().iter().for_each(|row| put_row(&mut out, row));
                message(&mut out, b'C', |out| out.put_slice(b"SELECT 0\0"));
            }
            b'S' => message(&mut out, b'Z', |out| out.put_u8(b'I')),
            b'C' => message(&mut out, b'3', |_| {}),
            _ => return None,
        }
    }
}

/// Skips a message whose length, which includes itself, was read.
async fn skip(stream: &mut DuplexStream, length: i32) -> Option<()> {
    let mut message = vec![0; usize::try_from(length).ok()? - 4];
    stream.read_exact(&mut message).await.ok().map(drop)
}

fn message(out: &mut BytesMut, kind: u8, put: impl FnOnce(&mut BytesMut)) {
    let mut body = BytesMut::new();
    put(&mut body);
    out.put_u8(kind);
    out.put_i32(i32::try_from(body.len() + 4).unwrap());
    out.put_slice(&body);
}

fn describe(out: &mut BytesMut, columns: &[(&str, u32)]) {
    let count = i16::try_from(columns.len()).unwrap();
    message(out, b't', |out| out.put_i16(0));
    message(out, b'T', |out| {
        out.put_i16(count);
        for (name, kind) in columns {
            out.put_slice(name.as_bytes());
            out.put_slice(b"\0\0\0\0\0\0\0"); // the end of the name, table and column
            out.put_u32(*kind);
            out.put_slice(b"\xff\xff\xff\xff\xff\xff\0\x01"); // the size, the modifier, binary
        }
    });
}

fn put_row(out: &mut BytesMut, row: &Cells) {
    message(out, b'D', |out| {
        out.put_i16(i16::try_from(row.len()).unwrap());
        for cell in row {
            out.put_i32(cell.as_ref().map_or(-1, |cell| i32::try_from(cell.len()).unwrap()));
            out.put_slice(cell.as_deref().unwrap_or_default());
        }
    });
}
