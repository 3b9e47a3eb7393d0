use super::connection::{Connection, Direction};
use crate::eventually::now;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What happens to bytes in transit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// Forwards the bytes.
    Forward,
    /// Forwards the bytes this long after they were read.
    Delay(Duration),
    /// Discards the bytes sent to the server.
    SwallowRequests,
    /// Discards the bytes sent to the client.
    SwallowReplies,
}

/// The decision about the bytes at hand.
#[derive(Debug)]
pub(super) enum Verdict {
    Pass,
    Swallow,
}

/// State shared by the threads of a proxy.
#[derive(Debug)]
pub(super) struct Faults {
    server: SocketAddr,
    state: Mutex<State>,
    /// Notified when the mode changes or a connection is closed.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    connections: Vec<Arc<Connection>>,
    /// Incremented when all connections are closed. A connection that was accepted before and
    /// becomes ready only afterwards is rejected.
    generation: u64,
    swallowed: u64,
}

impl Faults {
    pub(super) fn new(server: SocketAddr) -> Self {
        Self {
            server,
            state: Mutex::new(State {
                mode: Mode::Forward,
                connections: Vec::new(),
                generation: 0,
                swallowed: 0,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn server(&self) -> SocketAddr {
        self.server
    }

    pub(super) fn generation(&self) -> u64 {
        self.state().generation
    }

    pub(super) fn swallowed(&self) -> u64 {
        self.state().swallowed
    }

    /// Changes the mode, and closes the connections that have lost bytes.
    pub(super) fn set(&self, mode: Mode) {
        let mut state = self.state();
        state.mode = mode;
        for connection in &state.connections {
            if connection.has_gap() {
                connection.close();
            }
        }
        self.changed.notify_all();
    }

    /// Registers a connection accepted in this generation. Returns false if the generation is over.
    pub(super) fn open(&self, connection: &Arc<Connection>, generation: u64) -> bool {
        let mut state = self.state();
        let in_time = state.generation == generation;
        if in_time {
            state.connections.push(Arc::clone(connection));
        }
        in_time
    }

    pub(super) fn forget(&self, connection: &Arc<Connection>) {
        self.state().connections.retain(|other| !Arc::ptr_eq(other, connection));
    }

    pub(super) fn close_all(&self) {
        let mut state = self.state();
        state.generation += 1;
        for connection in &state.connections {
            connection.close();
        }
        self.changed.notify_all();
    }

    /// Wakes the threads that delay bytes, so that they check their connection again.
    pub(super) fn wake(&self) {
        // Taking the lock ensures that the notification does not fall between a thread's check and
        // its wait.
        let _state = self.state();
        self.changed.notify_all();
    }

    /// Decides what happens to `length` bytes that were read at `since`, after the delay if one is
    /// set.
    pub(super) fn judge(
        &self,
        direction: Direction,
        length: usize,
        connection: &Connection,
        since: Instant,
    ) -> Verdict {
        let mut state = self.state();
        loop {
            let left = match (state.mode, direction) {
                (Mode::SwallowRequests, Direction::Request)
                | (Mode::SwallowReplies, Direction::Reply) => {
                    state.swallowed += length as u64;
                    connection.note_gap();
                    return Verdict::Swallow;
                }
                (Mode::Delay(delay), _) => (since + delay).saturating_duration_since(now()),
                _ => Duration::ZERO,
            };
            // A write to a closed connection fails, which ends the thread.
            if left.is_zero() || connection.is_closed() {
                return Verdict::Pass;
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
