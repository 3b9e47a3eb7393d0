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
pub(super) enum Decision {
    Forward,
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
    pub(super) fn set_mode(&self, mode: Mode) {
        let mut state = self.state();
        state.mode = mode;
        for connection in &state.connections {
            if connection.has_gap() {
                connection.close();
            }
        }
        self.changed.notify_all();
    }

    /// Forwards nothing more on the connections that exist.
    pub(super) fn forget_all(&self) {
        let state = self.state();
        for connection in &state.connections {
            connection.forget();
        }
        self.changed.notify_all();
    }

    /// Registers a connection accepted in this generation, unless the generation is over.
    pub(super) fn register(&self, connection: &Arc<Connection>, generation: u64) -> bool {
        let mut state = self.state();
        let is_current = state.generation == generation;
        if is_current {
            state.connections.push(Arc::clone(connection));
        }
        is_current
    }

    pub(super) fn unregister(&self, connection: &Arc<Connection>) {
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
    pub(super) fn wake_waiters(&self) {
        // Taking the lock ensures that the notification does not fall between a thread's check and
        // its wait.
        let _state = self.state();
        self.changed.notify_all();
    }

    /// Decides what happens to `length` bytes that were read at `read_at`, after the delay if one
    /// is set.
    pub(super) fn decide(
        &self,
        direction: Direction,
        length: usize,
        connection: &Connection,
        read_at: Instant,
    ) -> Decision {
        let mut state = self.state();
        loop {
            let is_swallowed = match (state.mode, direction) {
                (Mode::SwallowRequests, Direction::Request)
                | (Mode::SwallowReplies, Direction::Reply) => true,
                _ => connection.is_forgotten(),
            };
            let remaining = match state.mode {
                _ if is_swallowed => {
                    state.swallowed += length as u64;
                    connection.mark_gap();
                    return Decision::Swallow;
                }
                Mode::Delay(delay) => (read_at + delay).saturating_duration_since(now()),
                _ => Duration::ZERO,
            };
            // A write to a closed connection fails, which ends the thread.
            if remaining.is_zero() || connection.is_closed() {
                return Decision::Forward;
            }
            state = self
                .changed
                .wait_timeout(state, remaining)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
