use crate::ServerError;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The ports to choose from lie below those that Linux gives to outgoing connections. Were they
/// among those, a client that keeps trying to reach a killed server would now and then be given the
/// server's own port, connect to itself, and keep the server from coming back.
const FIRST: u16 = 15_000;
const COUNT: u32 = 17_000;

/// Ports that each process has before it meets the next process's.
const EACH: u32 = 64;

/// How often a server is started anew because another process took its port in between.
const STARTS: usize = 5;

/// A port on 127.0.0.1 on which nobody listens now.
///
/// It was bound and released: another process may take it before you do. Within a process no port
/// comes twice until all have been given. It does not lie in the range from which outgoing
/// connections get theirs, so that a server can be stopped and started again on it.
///
/// # Errors
///
/// When every port of the range is taken.
pub fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(EACH);
    for _ in 0..COUNT {
        let place = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + u16::try_from(place).expect("COUNT fits in 16 bits");
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "every port for tests is taken"))
}

/// Runs `start` with a free port, and with another one if somebody else was faster.
pub(crate) fn with_free_port<T>(
    mut start: impl FnMut(u16) -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let mut starts = 1;
    loop {
        match start(free_port()?) {
            Err(ServerError::PortTaken { .. }) if starts < STARTS => starts += 1,
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_not_given() {
        let taken: Vec<_> = (0..20)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, free_port().unwrap())).unwrap())
            .collect();
        let another = free_port().unwrap();
        assert!(taken.iter().all(|listener| listener.local_addr().unwrap().port() != another));
    }

    #[test]
    fn a_start_that_finds_its_port_taken_gets_another_one() {
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
