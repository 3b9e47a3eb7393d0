use super::connection;
use super::faults::Faults;
use crate::free_port;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// The listening thread, which owns the threads of all connections.
#[derive(Debug)]
pub(super) struct Acceptor {
    addr: SocketAddr,
    faults: Arc<Faults>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<Vec<JoinHandle<()>>>,
}

impl Acceptor {
    /// Listens on a free port of 127.0.0.1.
    pub(super) fn bind_free_port(faults: &Arc<Faults>) -> io::Result<Self> {
        loop {
            match Self::bind((Ipv4Addr::LOCALHOST, free_port()?).into(), faults) {
                // Another process took the port. The loop ends at the latest when no port is free.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                result => return result,
            }
        }
    }

    /// Listens on this address.
    pub(super) fn bind(addr: SocketAddr, faults: &Arc<Faults>) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let thread = {
            let (faults, stopping) = (Arc::clone(faults), Arc::clone(&stopping));
            thread::spawn(move || accept(&listener, &faults, &stopping))
        };
        Ok(Self { addr, faults: Arc::clone(faults), stopping, thread })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Refuses new connections, closes existing ones, and waits until all threads have exited.
    pub(super) fn stop(self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the thread from `accept`. If the connection is refused, the thread no longer
        // listens.
        let _ = TcpStream::connect(self.addr);
        let connections = self.thread.join().expect("the accepting thread cannot panic");
        self.faults.close_all();
        for connection in connections {
            connection.join().expect("a connection's thread cannot panic");
        }
    }
}

/// Accepts connections until `stopping` is set, and starts a thread for each.
fn accept(
    listener: &TcpListener,
    faults: &Arc<Faults>,
    stopping: &AtomicBool,
) -> Vec<JoinHandle<()>> {
    let generation = faults.generation();
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    for client in listener.incoming() {
        if stopping.load(Ordering::SeqCst) {
            break;
        }
        // The client disconnected before its connection was accepted.
        let Ok(client) = client else { continue };
        connections.retain(|connection| !connection.is_finished());
        let faults = Arc::clone(faults);
        connections.push(thread::spawn(move || {
            connection::serve(client, generation, &faults);
        }));
    }
    connections
}
