use super::faults::{Decision, Faults};
use crate::eventually::now;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Time limit for the server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Size of one read, in bytes.
const BUFFER_SIZE: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Reply,
}

/// A client's connection and the matching connection to the server.
#[derive(Debug)]
pub(super) struct Connection {
    client: TcpStream,
    server: TcpStream,
    closed: AtomicBool,
    /// Set once bytes were swallowed.
    gap: AtomicBool,
    /// Set if nothing is forwarded any more, and neither side learns of it.
    forgotten: AtomicBool,
}

impl Connection {
    /// Closes both directions, which wakes pending reads and writes.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Fails only if the other side has already closed the connection.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn mark_gap(&self) {
        self.gap.store(true, Ordering::SeqCst);
    }

    pub(super) fn forget(&self) {
        self.forgotten.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::SeqCst)
    }

    pub(super) fn has_gap(&self) -> bool {
        self.gap.load(Ordering::SeqCst)
    }
}

/// Serves one client until either side disconnects.
pub(super) fn serve(client: TcpStream, generation: u64, faults: &Faults) {
    // The client sees an unavailable server as a closed connection; returning drops it.
    let Ok(connection) = connect(client, faults) else {
        return;
    };
    let connection = Arc::new(connection);
    if !faults.register(&connection, generation) {
        return;
    }
    thread::scope(|scope| {
        scope.spawn(|| pump(Direction::Reply, &connection, faults));
        pump(Direction::Request, &connection, faults);
    });
    faults.unregister(&connection);
}

fn connect(client: TcpStream, faults: &Faults) -> io::Result<Connection> {
    let server = TcpStream::connect_timeout(&faults.server(), CONNECT_TIMEOUT)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let [closed, gap, forgotten] = [const { AtomicBool::new(false) }; 3];
    Ok(Connection { client, server, closed, gap, forgotten })
}

/// Forwards bytes from one side to the other, subject to the faults.
fn pump(direction: Direction, connection: &Connection, faults: &Faults) {
    let (mut from, mut to) = match direction {
        Direction::Request => (&connection.client, &connection.server),
        Direction::Reply => (&connection.server, &connection.client),
    };
    let mut buffer = [0; BUFFER_SIZE];
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) => &buffer[..length],
        };
        match faults.decide(direction, bytes.len(), connection, now()) {
            Decision::Forward if to.write_all(bytes).is_ok() => {}
            Decision::Forward => break,
            Decision::Swallow => {}
        }
    }
    // A client does not learn that the server has closed a forgotten connection.
    if direction == Direction::Request || !connection.is_forgotten() {
        connection.close();
    }
    faults.wake_waiters();
}
