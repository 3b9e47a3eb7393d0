//! A server that answers each query with given cells, over a connection in memory.

use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Config, NoTls, Row, Statement};

use crate::wire::{
    Cells, Column, message, put_authenticated, put_columns, put_complete, put_parameters,
    put_ready, put_row,
};

/// The server, and a client with a prepared query.
pub(super) struct Server {
    runtime: Runtime,
    client: Client,
    statement: Statement,
    rows: Arc<Mutex<Vec<Cells>>>,
}

impl Server {
    pub(super) fn start(columns: &'static [Column]) -> Self {
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
    columns: &[Column],
    rows: Arc<Mutex<Vec<Cells>>>,
) -> Option<()> {
    let length = stream.read_i32().await.ok()?;
    skip(&mut stream, length).await?;
    let mut out = BytesMut::new();
    put_authenticated(&mut out);
    put_ready(&mut out);
    loop {
        stream.write_all(&out).await.ok()?;
        out.clear();
        let kind = stream.read_u8().await.ok()?;
        let length = stream.read_i32().await.ok()?;
        skip(&mut stream, length).await?;
        match kind {
            b'P' => message(&mut out, b'1', |_| {}),
            b'D' => {
                put_parameters(&mut out, &[]);
                put_columns(&mut out, columns, 1);
            }
            b'B' => message(&mut out, b'2', |_| {}),
            b'E' => {
                rows.lock().unwrap().iter().for_each(|row| put_row(&mut out, row));
                put_complete(&mut out);
            }
            b'S' => put_ready(&mut out),
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
