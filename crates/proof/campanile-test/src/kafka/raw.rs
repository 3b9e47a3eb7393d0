//! Requests that librdkafka's safe interface does not offer.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time limit of reading and writing, each.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the broker for the requests that librdkafka's safe interface does not offer.
pub(super) struct Connection(TcpStream);

impl Connection {
    pub(super) fn open(broker: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(broker)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self(stream))
    }

    /// Sends a request, in a version without tagged fields, and returns the response, which begins with 8 bytes of no interest.
    pub(super) fn request(&mut self, kind: i16, version: i16, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut request = [kind.to_be_bytes(), version.to_be_bytes(), [0, 0], [0, 0]].concat();
        put_string(&mut request, "campanile-test");
        request.extend(body);
        let length = u32::try_from(request.len()).expect("the request is small").to_be_bytes();
        self.0.write_all(&[&length, &*request].concat())?;
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut response = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut response)?;
        Ok(response)
    }
}

/// Appends a string, with a length of 16 bits.
pub(super) fn put_string(to: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).expect("a name in a test is short");
    to.extend(length.to_be_bytes());
    to.extend(text.as_bytes());
}
