//! A Postgres server in this process.
//!
//! It knows the statements that the store sends, and runs the functions of the schema as `step`. Each
//! call is a transaction. Entries do not expire, because no simulation lasts as long as a retention.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use campanile_core::{Entry, Grant, Operation, State, StoreKey};
use campanile_test::simulation::{
    self, Availability, Granted, Requests, Table, Watched, World, granted,
};
use tokio::time::{sleep, timeout};

use super::function::{Digest, Function, FunctionCall, row};
use super::planted::{Bug, is_planted};
use super::session::{Message, Request, Session, name};
use crate::findings::HAS_STANDBYS;
use crate::sessions::RETRY_AFTER;
use crate::watch::SETTINGS;
use crate::wire::{
    self, Cells, Column, TEXT, put_authenticated, put_columns, put_complete, put_parameters,
    put_ready, put_row,
};

#[derive(Clone)]
pub(super) struct Server(Arc<Inner>);

struct Inner {
    world: World,
    availability: Availability,
    entries: Table<Digest, Entry>,
    /// The rows that another session has locked: those with these last two bits of their key.
    locked: Watched<Option<u8>>,
    /// Whether calls fail because they conflict with other transactions.
    has_conflicts: AtomicBool,
    /// How often all faults were ended.
    heals: Watched<u64>,
    /// The port of the server that accepts writes.
    primary: AtomicU16,
    sessions: AtomicU32,
}

/// An error of the server: its severity, its code and its text.
type Failed = (&'static str, &'static str, &'static str);

const STOPPED: Failed = ("FATAL", "57P01", "terminating connection due to administrator command");
const STARTING: Failed = ("FATAL", "57P03", "the database system is starting up");
const LOCKED: Failed = ("ERROR", "55P03", "canceling statement due to lock timeout");
const CONFLICT: Failed = ("ERROR", "40001", "could not serialize access");

impl Server {
    /// The ports of the servers. One of them accepts writes.
    pub(super) const PORTS: [u16; 2] = [1, 2];

    pub(super) fn new(world: World) -> Self {
        Self(Arc::new(Inner {
            availability: Availability::new(world.clone(), RETRY_AFTER),
            entries: Table::new(world.clone()),
            locked: Watched::new(None),
            has_conflicts: AtomicBool::new(false),
            heals: Watched::new(0),
            primary: AtomicU16::new(Self::PORTS[0]),
            sessions: AtomicU32::new(0),
            world,
        }))
    }

    /// Whether the server at this port accepts writes.
    pub(super) fn is_primary(&self, port: u16) -> bool {
        self.0.primary.load(Ordering::Relaxed) == port
    }

    /// Stops the server and starts it again after this time, or another one. It loses the writes of the
    /// last microseconds, if any are to be lost.
    pub(super) fn restart(&self, duration: Duration, is_other: bool, lost: Option<u64>) {
        self.0.availability.restart(duration);
        if is_other {
            let [one, other] = Self::PORTS;
            let port = if self.is_primary(one) { other } else { one };
            self.0.primary.store(port, Ordering::Relaxed);
        }
        if let Some(last) = lost {
            self.0.entries.lose_writes(last);
        }
    }

    /// Locks a quarter of the rows for this time, as another session does.
    pub(super) fn lock_rows(&self, duration: Duration, quarter: u8) {
        self.0.locked.set(Some(quarter % 4));
        self.spawn_recovery(duration, |server| server.0.locked.set(None));
    }

    /// Makes all calls fail for this time, because other transactions are serialized before them.
    pub(super) fn conflict(&self, duration: Duration) {
        self.0.has_conflicts.store(true, Ordering::Relaxed);
        self.spawn_recovery(duration, |server| {
            server.0.has_conflicts.store(false, Ordering::Relaxed);
        });
    }

    fn spawn_recovery(&self, duration: Duration, recover: fn(&Self)) {
        let (server, from) = (self.clone(), self.0.world.recorder.now());
        let heals = self.0.heals.get();
        tokio::spawn(async move {
            tokio::select! {
                () = sleep(duration) => {}
                _ = server.0.heals.wait_for(|now| now != heals) => {}
            }
            recover(&server);
            server.0.availability.record_unavailable(from);
        });
    }

    pub(super) fn heal(&self) {
        self.0.availability.heal();
        self.0.heals.set(self.0.heals.get() + 1);
    }

    pub(super) fn has_lost_writes(&self) -> bool {
        self.0.entries.has_lost_writes()
    }

    /// Checks whether the call has to wait for a row that another session has locked.
    fn waits(&self, function: Function, keys: &[Digest], quarter: Option<u8>) -> bool {
        let is_locked = |key: &&Digest| quarter.is_some_and(|quarter| key[15] % 4 == quarter);
        keys.iter().filter(is_locked).any(|key| {
            let state = self.0.entries.get(key).map(|entry| entry.state());
            // An acquire reads a settled entry without locking its row.
            state.is_some_and(|state| {
                function != Function::Acquire
                    || [State::Processing, State::Retrying].contains(&state)
            })
        })
    }

    fn answer(
        &self,
        session: &mut Session,
        message: &Message,
        call: Option<&FunctionCall>,
        out: &mut BytesMut,
    ) -> Result<Vec<Granted>, Failed> {
        let mut body = message.body.clone();
        let end = |out: &mut BytesMut, kind| wire::message(out, kind, |_| {});
        match message.kind {
            b'Q' => {
                let text = name(&mut body);
                self.query(session, std::str::from_utf8(&text).expect("UTF-8"), out);
            }
            b'P' => {
                let (statement, text) = (name(&mut body), name(&mut body));
                let function = Function::find(std::str::from_utf8(&text).expect("UTF-8"));
                session.statements.insert(statement, function);
                end(out, b'1');
            }
            b'D' => {
                body.advance(1);
                let function = session.statements[&name(&mut body)];
                put_parameters(out, function.parameters());
                put_columns(out, function.columns(), 1);
            }
            b'B' => end(out, b'2'),
            b'E' => {
                let (rows, locks) =
                    self.run(session, call.expect("bound before it is executed"))?;
                rows.iter().for_each(|row| put_row(out, row));
                put_complete(out);
                return Ok(locks);
            }
            b'C' => {
                body.advance(1);
                session.statements.remove(&name(&mut body));
                end(out, b'3');
            }
            b'S' => {}
            kind => {
                panic!("the simulated server does not know the message {}", kind.escape_ascii())
            }
        }
        Ok(Vec::new())
    }

    /// Answers a query without parameters.
    fn query(&self, session: &mut Session, text: &str, out: &mut BytesMut) {
        const COLUMNS: [Column; 4] = [("a", TEXT), ("b", TEXT), ("c", TEXT), ("d", TEXT)];
        let id = session.id.expect("the session has started");
        let mut answer = |columns: &[Option<&str>]| {
            let cell = |text: &Option<&str>| text.map(|text| text.as_bytes().to_vec());
            put_columns(out, &COLUMNS[..columns.len()], 0);
            put_row(out, &columns.iter().map(cell).collect());
        };
        let (process, version) = (id.to_string(), campanile_sql::VERSION.to_string());
        if text.starts_with("SELECT id FROM ") {
            // The server has ended every session whose connection is closed.
        } else if text.contains("campanile.version()") {
            answer(&[Some(&process), Some(&version), None, Some("the settings")]);
        } else if text == HAS_STANDBYS {
            answer(&[Some("f")]);
        } else if text.contains("backend_start") {
            answer(&[Some(&process), Some(&format!("{id} 0"))]);
        } else if text == "SELECT pg_catalog.pg_backend_pid()" {
            answer(&[Some(&process)]);
        } else {
            assert!(text.ends_with(SETTINGS), "{text}");
            // The session of the connection has them from its start.
            answer(&[(text == SETTINGS).then_some("the settings"), Some("the settings")]);
        }
        if text.contains("SET default_") {
            let limit = text.split_once("lock_timeout = ").map(|(_, limit)| {
                let digits = limit.split_once(';').map_or(limit, |(digits, _)| digits);
                digits.parse()
            });
            let limit = limit.map(|millis| Duration::from_millis(millis.expect("milliseconds")));
            session.lock_timeout = limit;
        }
        put_complete(out);
    }

    /// Runs a function. Returns its rows, and the locks that it granted.
    fn run(
        &self,
        session: &Session,
        call: &FunctionCall,
    ) -> Result<(Vec<Cells>, Vec<Granted>), Failed> {
        let World { operations, store_clock, .. } = &self.0.world;
        let (function, keys, now) = (call.function, call.keys(), store_clock.now());
        let clock = row(function, 0, now, None);
        let omits = |bug| is_planted(bug) && function != Function::Sweep;
        if session.has_timed_out && !omits(Bug::LockTimeoutDone) {
            return Err(LOCKED);
        }
        let has_conflicts = self.0.has_conflicts.load(Ordering::Relaxed);
        if has_conflicts && !omits(Bug::ConflictDone) {
            return Err(CONFLICT);
        }
        if function == Function::Sweep {
            return Ok((vec![vec![Some(0_i64.to_be_bytes().to_vec()), None]], Vec::new()));
        }
        let is_omitted = function == Function::Adopt && is_planted(Bug::AdoptOmitted);
        if session.has_timed_out || has_conflicts || is_omitted {
            return Ok((vec![clock], Vec::new()));
        }
        let (mut rows, mut locks, mut are_all_usual) = (Vec::new(), Vec::new(), true);
        for (index, digest) in keys.iter().enumerate() {
            let before = self.0.entries.get(digest);
            let mut operation = call.operation(index);
            if is_planted(Bug::GrantNotCompared) {
                accept(&mut operation, before.as_ref());
            }
            let (after, reply, is_usual) = call.run(&operation, before.clone(), now);
            if let Some(reply) = reply {
                let key = StoreKey::from_digest(namespace(), *digest);
                operations.record(&key, now, &operation, &reply);
                locks.extend(granted(&key, &operation, &reply));
            }
            are_all_usual &= is_usual;
            let place = match is_planted(Bug::RowsRotated) {
                true => (index + keys.len() - 1) % keys.len() + 1,
                false => index + 1,
            };
            rows.push((is_usual, row(function, place, now, after.as_ref())));
            if let Some(entry) = after.filter(|after| before.as_ref() != Some(after)) {
                self.0.entries.set(*digest, entry);
            }
        }
        // Those that insert return the other rows in the order of the keys, and the others all or none.
        if matches!(function, Function::Acquire | Function::Adopt) {
            let mut order: Vec<_> = keys.iter().zip(rows).collect();
            order.sort_by_key(|(key, _)| **key);
            rows =
                order.into_iter().map(|(_, row)| row).filter(|(is_usual, _)| !is_usual).collect();
        } else if are_all_usual {
            rows.clear();
        }
        if is_planted(Bug::RowsInOrder) {
            let places = (1_i32..).map(|place| Some(place.to_be_bytes().to_vec()));
            rows.iter_mut().zip(places).for_each(|((_, row), place)| row[0] = place);
        }
        Ok((std::iter::once(clock).chain(rows.into_iter().map(|(_, row)| row)).collect(), locks))
    }
}

impl simulation::Server for Server {
    type Session = Session;
    type Request = Request;

    fn availability(&self) -> &Availability {
        &self.0.availability
    }

    fn entry(&self, key: &StoreKey) -> Option<Entry> {
        self.0.entries.get(key.digest())
    }

    async fn read(
        &self,
        session: &Session,
        requests: &mut Requests,
    ) -> io::Result<Option<Request>> {
        Request::read(session, requests).await
    }

    /// Waits for rows that another session has locked, at most as long as the lock timeout.
    async fn admit(&self, session: &mut Session, request: &Request) {
        let Some(call) = session.call(request) else { return };
        let keys = call.keys();
        let is_free = |quarter| !self.waits(call.function, &keys, quarter);
        let limit = session.lock_timeout.unwrap_or(Duration::MAX);
        let waiting = timeout(limit, self.0.locked.wait_for(is_free));
        session.has_timed_out = waiting.await.is_err();
    }

    fn execute(&self, session: &mut Session, request: &Request) -> (Vec<u8>, Vec<Granted>) {
        let (mut out, mut locks) = (BytesMut::new(), Vec::new());
        match request {
            Request::Startup if !self.0.availability.is_up() => put_error(&mut out, STARTING),
            Request::Startup => {
                session.id = Some(self.0.sessions.fetch_add(1, Ordering::Relaxed));
                put_authenticated(&mut out);
                put_ready(&mut out);
            }
            Request::Messages(messages) => {
                let call = session.call(request);
                for message in messages {
                    match self.answer(session, message, call.as_ref(), &mut out) {
                        Ok(granted) => locks.extend(granted),
                        Err(error) => {
                            put_error(&mut out, error);
                            break;
                        }
                    }
                }
                put_ready(&mut out);
            }
        }
        (out.to_vec(), locks)
    }

    fn farewell(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        put_error(&mut out, STOPPED);
        out.to_vec()
    }

    fn is_reply_kept(&self, request: &Request) -> bool {
        let Request::Messages(messages) = request else { return false };
        is_planted(Bug::StaleReply) && messages.iter().any(|message| message.kind == b'E')
    }

    fn is_silence_kept(&self) -> bool {
        is_planted(Bug::ConnectionKept)
    }
}

fn put_error(out: &mut BytesMut, (severity, code, text): Failed) {
    wire::message(out, b'E', |out| {
        for (field, value) in [(b'S', severity), (b'V', severity), (b'C', code), (b'M', text)] {
            out.put_u8(field);
            out.put_slice(value.as_bytes());
            out.put_u8(0);
        }
        out.put_u8(0);
    });
}

/// Gives the operation the grant of the lock.
fn accept(operation: &mut Operation, entry: Option<&Entry>) {
    let Some(entry) = entry.filter(|entry| entry.state() == State::Processing) else { return };
    let Some(owner) = entry.owner() else { return };
    match operation {
        Operation::Renew { grant, .. }
        | Operation::Complete { grant, .. }
        | Operation::Fail { grant, .. }
        | Operation::Release { grant, .. }
        | Operation::RecordStep { grant, .. }
        | Operation::GiveUp { grant, .. } => *grant = Grant { token: entry.token(), owner },
        _ => {}
    }
}

/// The namespace of the simulation.
fn namespace() -> campanile_core::Namespace {
    "payments".try_into().expect("a namespace")
}
