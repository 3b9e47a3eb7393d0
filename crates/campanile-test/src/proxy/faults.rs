use super::connection::{Connection, Direction};
use crate::eventually::now;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// They pass.
    Forward,
    /// They pass this long after they were read.
    Delay(Duration),
    /// Those for the server are thrown away.
    SwallowRequests,
    /// Those for the client are thrown away.
    SwallowReplies,
}

/// What is done with the bytes at hand.
#[derive(Debug)]
pub(super) enum Verdict {
    Pass,
    Swallow,
}

/// What the threads of a proxy share.
#[derive(Debug)]
pub(super) struct Faults {
    server: SocketAddr,
    state: Mutex<State>,
    /// The mode has changed, or a connection was closed.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    connections: Vec<Arc<Connection>>,
    /// Rises when all connections are closed: one that was accepted before, and is only now ready,
    /// is too late.
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

    /// Changes the mode, and closes the connections from whose streams bytes are missing.
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

    /// Takes note of a connection accepted in this generation; says no if that is over.
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

    /// Makes the threads that hold bytes back look at their connection again.
    pub(super) fn wake(&self) {
        // Under the lock, so that it does not fall between a thread's look and its wait.
        let _state = self.state();
        self.changed.notify_all();
    }

    /// Decides about `length` bytes that were read at `since`, after the delay if there is one.
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
            // To pass bytes to a connection that is closed fails, which is what its thread waits for.
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
