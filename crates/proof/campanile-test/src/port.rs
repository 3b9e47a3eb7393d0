use crate::ServerError;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Lower bound of the port range, which lies below the range that Linux uses for outgoing
/// connections. Otherwise, a client that keeps reconnecting to a killed server would now and then
/// be given the server's own port, connect to itself, and keep the server from restarting.
const FIRST_PORT: u16 = 15_000;
const PORT_COUNT: u32 = 17_000;

/// Number of ports that a process uses before it reaches the next process's range.
const PORTS_PER_PROCESS: u32 = 64;

/// Number of starts before a server gives up because other processes took its port.
const MAX_STARTS: usize = 5;

/// Finds a port on 127.0.0.1 that is currently free.
///
/// The port was bound and released, so another process may take it before the caller does. Within a
/// process, no port is returned twice until all ports have been used. The port lies outside the
/// range of outgoing connections, so that a server can be stopped and restarted on the port.
///
/// # Errors
///
/// Fails if every port of the range is in use.
pub fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(PORTS_PER_PROCESS);
    for _ in 0..PORT_COUNT {
        let index = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORT_COUNT;
        let port = FIRST_PORT + u16::try_from(index).expect("PORT_COUNT fits in 16 bits");
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "every port for tests is in use"))
}

/// Calls `start` with a free port, and again with another port if the port was taken in the
/// meantime.
pub(crate) fn with_free_port<T>(
    mut start: impl FnMut(u16) -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let mut starts = 1;
    loop {
        match start(free_port()?) {
            Err(ServerError::PortTaken { .. }) if starts < MAX_STARTS => starts += 1,
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_port_skips_ports_in_use() {
        let taken: Vec<_> = (0..20)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, free_port().unwrap())).unwrap())
            .collect();
        let another = free_port().unwrap();
        assert!(taken.iter().all(|listener| listener.local_addr().unwrap().port() != another));
    }

    #[test]
    fn taken_port_is_replaced_by_another() {
        let mut tried = Vec::new();
        let port = with_free_port(|port| {
            tried.push(port);
            if tried.len() < 3 {
                let server = "a server".to_owned();
                return Err(ServerError::PortTaken { server, port });
            }
            Ok(port)
        });
        assert_eq!(port.unwrap(), tried[2]);
        assert_ne!(tried[0], tried[1]);
    }
}
