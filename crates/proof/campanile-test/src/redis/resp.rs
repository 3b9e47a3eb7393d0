//! A minimal client of the Redis protocol that sends a command and formats its reply.

use std::io::{self, BufRead, BufReader, Read, Write};

/// Sends one command and waits for its reply.
pub(super) fn command<S: Read + Write>(
    stream: &mut BufReader<S>,
    args: &[&str],
) -> io::Result<String> {
    let mut request = format!("*{}\r\n", args.len());
    for arg in args {
        request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
    }
    stream.get_mut().write_all(request.as_bytes())?;
    reply(stream)
}

/// Reads a reply as text. An error reply becomes an error.
fn reply(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let Some(line) = line.strip_suffix("\r\n") else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let (kind, rest) = line.split_at_checked(1).ok_or_else(invalid_reply)?;
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "-" => Err(io::Error::other(rest)),
        "$" => match length(rest)? {
            None => Ok("(nil)".to_owned()),
            Some(length) => bulk(stream, length),
        },
        "*" => match length(rest)? {
            None => Ok("(nil)".to_owned()),
            Some(length) => {
                let elements: io::Result<Vec<_>> = (0..length).map(|_| reply(stream)).collect();
                Ok(elements?.join("\n"))
            }
        },
        _ => Err(invalid_reply()),
    }
}

fn bulk(stream: &mut impl BufRead, length: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    stream.take(length + 2).read_to_end(&mut bytes)?;
    let text = bytes.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Parses the length of what follows; `None` for nil.
fn length(text: &str) -> io::Result<Option<u64>> {
    match text {
        "-1" => Ok(None),
        _ => text.parse().map(Some).map_err(|_| invalid_reply()),
    }
}

fn invalid_reply() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a Redis reply")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> io::Result<String> {
        reply(&mut bytes)
    }

    #[test]
    fn replies_of_every_kind_are_formatted() {
        assert_eq!(read(b"+OK\r\n").unwrap(), "OK");
        assert_eq!(read(b":-7\r\n").unwrap(), "-7");
        assert_eq!(read(b"$4\r\na\r\nb\r\n").unwrap(), "a\r\nb");
        assert_eq!(read(b"$-1\r\n").unwrap(), "(nil)");
        assert_eq!(read(b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n").unwrap(), "1\na\n(nil)");
    }

    #[test]
    fn error_reply_becomes_error_with_its_text() {
        let error = read(b"-NOAUTH Authentication required.\r\n").unwrap_err();
        assert_eq!(error.to_string(), "NOAUTH Authentication required.");
    }

    #[test]
    fn truncated_or_invalid_reply_is_an_error() {
        for bytes in [&b""[..], b"+OK", b"\r\n", b"$5\r\nab", b"$x\r\n", b"*2\r\n:1\r\n", b"?\r\n"]
        {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
