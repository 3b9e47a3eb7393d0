//! The protocol between a Redis server and its clients.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// The arguments of a command.
pub(super) type Request = Vec<Vec<u8>>;

/// A reply of the server.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Ok,
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    Error(&'static str),
}

/// Reads a command. `None` if the client has closed the connection.
pub(super) async fn read_request(
    reader: &mut (impl AsyncBufRead + Unpin),
) -> io::Result<Option<Request>> {
    let mut line = Vec::new();
    if reader.read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    let mut request = Vec::new();
    for _ in 0..number_after(b'*', &line) {
        line.clear();
        reader.read_until(b'\n', &mut line).await?;
        let mut argument = vec![0; number_after(b'$', &line) + 2];
        reader.read_exact(&mut argument).await?;
        argument.truncate(argument.len() - 2);
        request.push(argument);
    }
    Ok(Some(request))
}

fn number_after(prefix: u8, line: &[u8]) -> usize {
    let text = line.strip_prefix(&[prefix]).and_then(|line| line.strip_suffix(b"\r\n"));
    let text = std::str::from_utf8(text.expect("a command")).expect("a number");
    text.parse().expect("a number")
}

impl Reply {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Bulk(text.into().into_bytes())
    }

    /// Appends the encoded reply.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ok => out.extend_from_slice(b"+OK\r\n"),
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::Int(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Self::Error(text) => out.extend_from_slice(format!("-{text}\r\n").as_bytes()),
            Self::Bulk(bytes) => {
                out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Array(items) => {
                out.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
                items.iter().for_each(|item| item.write(out));
            }
        }
    }
}
