//! A server of a store in this process, and what it keeps.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{Details, Entry, Operation, Owner, Reply, StoreKey};
use campanile_history::FaultKind;
use tokio::io::{BufReader, DuplexStream, ReadHalf};
use tokio::time::sleep;

use super::World;
use super::watched::Watched;

/// A lock that a request was granted: the key, and the nonce of the acquire.
pub type Granted = (StoreKey, Owner);

/// What a server reads a client's requests from.
pub type Requests = BufReader<ReadHalf<DuplexStream>>;

/// A server that speaks the protocol of a store, and runs its operations as `step`.
pub trait Server: Clone + Send + Sync + 'static {
    /// What the server knows about a connection.
    type Session: Default + Send + Sync + 'static;

    /// What a client sends at once, and what is answered at once.
    type Request: Send + Sync + 'static;

    /// Whether the server runs and answers.
    fn availability(&self) -> &Availability;

    /// The entry of a key.
    fn entry(&self, key: &StoreKey) -> Option<Entry>;

    /// Reads a request. `None` if the client has closed the connection.
    fn read(
        &self,
        session: &Self::Session,
        requests: &mut Requests,
    ) -> impl Future<Output = io::Result<Option<Self::Request>>> + Send;

    /// Waits until the request can be executed.
    fn admit(
        &self,
        _session: &mut Self::Session,
        _request: &Self::Request,
    ) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Executes a request. Returns the encoded reply, and the locks that it granted.
    fn execute(
        &self,
        session: &mut Self::Session,
        request: &Self::Request,
    ) -> (Vec<u8>, Vec<Granted>);

    /// What each client receives when the server is stopped.
    fn farewell(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Whether the reply to this request is delivered over the next connection if it is lost, and that
    /// of the next one after it: a planted bug.
    fn is_reply_kept(&self, request: &Self::Request) -> bool;

    /// Whether a process whose connection is no longer answered gets no answer over its next ones, as if
    /// it used the same one again: a planted bug.
    fn is_silence_kept(&self) -> bool;
}

/// Whether a server runs and answers.
#[derive(Clone, Debug)]
pub struct Availability {
    world: World,
    reconnect: Duration,
    status: Arc<Watched<Status>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    restarts: u64,
    is_up: bool,
    /// Whether the server accepts connections and answers nothing.
    is_stalled: bool,
    /// When the current fault began.
    broken_since: Option<u64>,
}

impl Availability {
    /// The server runs. After a fault, its clients may wait this long for connections that they began
    /// to open during it.
    pub fn new(world: World, reconnect: Duration) -> Self {
        let status = Status { restarts: 0, is_up: true, is_stalled: false, broken_since: None };
        Self { world, reconnect, status: Arc::new(Watched::new(status)) }
    }

    /// How long a fault has an effect after its end, in microseconds: calls that were sent before may be
    /// unanswered until their timeout, and then open a connection.
    pub(super) fn recovery(&self) -> u64 {
        (self.world.plan.command_timeout() + self.reconnect).as_micros() as u64
    }

    /// The number of restarts.
    pub fn restarts(&self) -> u64 {
        self.status.get().restarts
    }

    /// Whether the server accepts connections.
    pub fn is_up(&self) -> bool {
        self.status.get().is_up
    }

    /// Waits until the server answers. Returns whether it was not restarted meanwhile.
    pub(super) async fn answers(&self, restarts: u64) -> bool {
        let is_settled = |status: Status| status.restarts != restarts || !status.is_stalled;
        self.status.wait_for(is_settled).await.restarts == restarts
    }

    /// Waits until the server is stopped.
    pub(super) async fn stopped(&self, restarts: u64) {
        self.status.wait_for(|status| status.restarts != restarts).await;
    }

    /// Answers nothing for this time.
    pub fn stall(&self, duration: Duration) {
        self.break_for(duration, |now| Status { is_stalled: true, ..now });
    }

    /// Stops the server, and starts it again after this time.
    pub fn restart(&self, duration: Duration) {
        self.break_for(duration, |now| Status {
            restarts: now.restarts + 1,
            is_up: false,
            is_stalled: false,
            ..now
        });
    }

    fn break_for(&self, duration: Duration, change: impl FnOnce(Status) -> Status) {
        self.record_fault();
        let broken_since = Some(self.world.recorder.now());
        let broken = Status { broken_since, ..change(self.status.get()) };
        self.status.set(broken);
        let this = self.clone();
        tokio::spawn(async move {
            sleep(duration).await;
            if this.status.get() == broken {
                this.heal();
            }
        });
    }

    /// Records the current fault, which ends now.
    fn record_fault(&self) {
        if let Some(from) = self.status.get().broken_since {
            self.record_unavailable(from);
        }
    }

    /// Records that the server was unavailable since this time.
    pub fn record_unavailable(&self, from: u64) {
        self.world.record_fault(from, self.recovery(), FaultKind::StoreUnavailable);
    }

    /// Makes the server run and answer.
    pub fn heal(&self) {
        self.record_fault();
        let restarts = self.restarts();
        self.status.set(Status { restarts, is_up: true, is_stalled: false, broken_since: None });
    }
}

/// The values that a server keeps, and those that it had before.
#[derive(Debug)]
pub struct Table<K, V> {
    world: World,
    state: Mutex<TableState<K, V>>,
}

#[derive(Debug)]
struct TableState<K, V> {
    values: BTreeMap<K, V>,
    /// The writes so far: the time in microseconds, the key, and its value before.
    journal: Vec<(u64, K, Option<V>)>,
    has_lost_writes: bool,
}

impl<K: Clone + Ord, V: Clone> Table<K, V> {
    /// Creates an empty table.
    pub fn new(world: World) -> Self {
        let (values, journal) = (BTreeMap::new(), Vec::new());
        Self { world, state: Mutex::new(TableState { values, journal, has_lost_writes: false }) }
    }

    fn state(&self) -> MutexGuard<'_, TableState<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        self.state().values.get(key).cloned()
    }

    /// Writes the value of a key.
    pub fn set(&self, key: K, value: V) {
        let at = self.world.recorder.now();
        let mut state = self.state();
        let before = state.values.insert(key.clone(), value);
        state.journal.push((at, key, before));
    }

    /// Loses the writes of the last microseconds.
    pub fn lose_writes(&self, last: u64) {
        let now = self.world.recorder.now();
        let mut state = self.state();
        let kept = state.journal.partition_point(|(at, ..)| at.saturating_add(last) < now);
        let undone = state.journal.split_off(kept);
        let Some((first, ..)) = undone.first() else { return };
        self.world.recorder.fault(*first, Some(now), FaultKind::StoreLostWrites);
        state.has_lost_writes = true;
        for (_, key, before) in undone.into_iter().rev() {
            match before {
                Some(value) => state.values.insert(key, value),
                None => state.values.remove(&key),
            };
        }
    }

    /// Checks whether writes were lost.
    pub fn has_lost_writes(&self) -> bool {
        self.state().has_lost_writes
    }
}

/// The lock that the operation was granted, if any.
pub fn granted(key: &StoreKey, operation: &Operation, reply: &Reply) -> Option<Granted> {
    match (operation, reply) {
        (Operation::Acquire { owner, .. }, Reply::Acquired { .. } | Reply::Exhausted { .. }) => {
            Some((key.clone(), *owner))
        }
        _ => None,
    }
}

/// Reads the encoded details of an operation.
///
/// # Panics
/// Panics if there are more than an entry has room for.
pub fn read_details(details: &[u8]) -> Option<Details> {
    // As a part of an entry, because nothing else reads them.
    const HEADER: usize = 44;
    let mut entry = vec![0; HEADER];
    (entry[0], entry[1]) = (0xC1, 1); // the version, PROCESSING
    entry[6] = 3; // details
    entry[16] = 1; // an owner
    entry.extend_from_slice(&u16::try_from(details.len()).unwrap().to_be_bytes());
    entry.extend_from_slice(details);
    Entry::from_bytes(&entry).unwrap().details().cloned()
}
