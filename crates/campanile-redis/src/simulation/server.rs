//! A Redis server in this process.
//!
//! It knows the commands that the store sends, and runs the scripts as `step`. Keys do not expire,
//! because no simulation lasts as long as a retention.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use campanile_core::{Entry, Operation, Owner, Reply as Replied, StoreKey};
use campanile_test::history::FaultKind;
use campanile_test::simulation::World;
use tokio::time::sleep;

use super::resp::{Reply, Request};
use super::script::ScriptCall;
use super::watched::Watched;
use crate::bucket::Buckets;
use crate::key::{parse_entry_key, write_entry_key};
use crate::script::{Scripts, Verb};

/// The scripts in the order of [`Verb`].
const VERBS: [Verb; 8] = [
    Verb::Acquire,
    Verb::Renew,
    Verb::Complete,
    Verb::Fail,
    Verb::Release,
    Verb::Cancel,
    Verb::GiveUp,
    Verb::Redrive,
];

#[derive(Clone)]
pub(super) struct Server(Arc<Inner>);

struct Inner {
    world: World,
    scripts: Scripts,
    state: Mutex<State>,
    status: Watched<Status>,
}

#[derive(Default)]
struct State {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The writes so far: the time in microseconds, the key, and its value before.
    journal: Vec<(u64, Vec<u8>, Option<Vec<u8>>)>,
    cached: BTreeSet<String>,
    has_lost_writes: bool,
}

/// Whether the server runs and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    /// The number of restarts.
    pub(super) restarts: u64,
    pub(super) is_up: bool,
    /// Whether it accepts connections and answers nothing.
    is_stalled: bool,
}

/// A lock that a script granted: the key, and the nonce of the acquire.
pub(super) type Granted = (StoreKey, Owner);

impl Server {
    pub(super) fn new(world: World) -> Self {
        let status = Status { restarts: 0, is_up: true, is_stalled: false };
        Self(Arc::new(Inner {
            world,
            scripts: Scripts::default(),
            state: Mutex::default(),
            status: Watched::new(status),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> Status {
        self.0.status.get()
    }

    /// Waits until the server answers. Returns whether it was not restarted meanwhile.
    pub(super) async fn answers(&self, restarts: u64) -> bool {
        let is_settled = |status: Status| status.restarts != restarts || !status.is_stalled;
        self.0.status.wait_for(is_settled).await.restarts == restarts
    }

    /// Waits until the server is stopped.
    pub(super) async fn stopped(&self, restarts: u64) {
        self.0.status.wait_for(|status| status.restarts != restarts).await;
    }

    /// Answers nothing for this time.
    pub(super) fn stall(&self, duration: Duration) {
        self.0.status.set(Status { is_stalled: true, ..self.status() });
        self.recover_after(duration);
    }

    /// Stops the server and starts it again after this time. It loses the writes of the last
    /// microseconds, if any are to be lost.
    pub(super) fn restart(&self, duration: Duration, lost: Option<u64>) {
        let restarts = self.status().restarts + 1;
        self.0.status.set(Status { restarts, is_up: false, is_stalled: false });
        let now = self.0.world.recorder.now();
        let mut state = self.state();
        state.cached.clear();
        if let Some(lost) = lost {
            let kept = state.journal.partition_point(|(at, ..)| at.saturating_add(lost) < now);
            let undone = state.journal.split_off(kept);
            let Some((first, ..)) = undone.first() else {
                drop(state);
                return self.recover_after(duration);
            };
            let lost = FaultKind::StoreLostWrites;
            self.0.world.recorder.fault(*first, Some(now), lost);
            state.has_lost_writes = true;
            for (_, key, before) in undone.into_iter().rev() {
                match before {
                    Some(value) => state.values.insert(key, value),
                    None => state.values.remove(&key),
                };
            }
        }
        drop(state);
        self.recover_after(duration);
    }

    /// Forgets all scripts.
    pub(super) fn flush_scripts(&self) {
        self.state().cached.clear();
    }

    fn recover_after(&self, duration: Duration) {
        let (server, from) = (self.clone(), self.0.world.recorder.now());
        let broken = self.status();
        tokio::spawn(async move {
            sleep(duration).await;
            let World { plan, recorder, .. } = &server.0.world;
            // Calls that were sent before may be unanswered until their timeout.
            let until = recorder.now() + super::command_timeout(plan).as_micros() as u64;
            recorder.fault(from, Some(until), FaultKind::StoreUnavailable);
            if server.status() == broken {
                server.heal();
            }
        });
    }

    pub(super) fn heal(&self) {
        self.0.status.set(Status { is_up: true, is_stalled: false, ..self.status() });
    }

    pub(super) fn has_lost_writes(&self) -> bool {
        self.state().has_lost_writes
    }

    pub(super) fn entry(&self, key: &StoreKey) -> Option<Entry> {
        let mut name = Vec::new();
        write_entry_key(&mut name, key, Buckets::DEFAULT);
        let state = self.state();
        state.values.get(&name).map(|bytes| Entry::from_bytes(bytes).expect("an entry"))
    }

    /// Executes a command. Returns the locks that it granted.
    pub(super) fn execute(&self, request: &Request) -> (Reply, Vec<Granted>) {
        let name = |index: usize| request.get(index).map(|word| String::from_utf8_lossy(word));
        let reply = match (name(0).as_deref(), name(1).as_deref()) {
            (Some("EVALSHA"), Some(hash)) => match self.find_script(hash) {
                Some(verb) if self.state().cached.contains(hash) => {
                    return self.run_script(&ScriptCall::new(verb, &request[2..]));
                }
                _ => Reply::Error("NOSCRIPT No matching script. Please use EVAL."),
            },
            (Some("EVAL"), Some(text)) => {
                let script = VERBS.into_iter().find(|verb| self.0.scripts.get(*verb).text == text);
                let verb = script.expect("one of the scripts");
                self.state().cached.insert(self.0.scripts.get(verb).hash.clone());
                return self.run_script(&ScriptCall::new(verb, &request[2..]));
            }
            (Some("GET"), _) => match self.state().values.get(&request[1]) {
                Some(value) => Reply::Bulk(value.clone()),
                None => Reply::Nil,
            },
            (Some("SET"), _) => {
                assert_eq!(request[3..], [b"NX".to_vec(), b"GET".to_vec()]);
                let before = self.state().values.get(&request[1]).cloned();
                if before.is_none() {
                    self.set(request[1].clone(), request[2].clone());
                }
                before.map_or(Reply::Nil, Reply::Bulk)
            }
            (Some("INFO"), _) => Reply::text(self.info()),
            (Some("CLIENT"), _) => Reply::Ok,
            (command, _) => panic!("the simulated server does not know {command:?}"),
        };
        (reply, Vec::new())
    }

    fn find_script(&self, hash: &str) -> Option<Verb> {
        VERBS.into_iter().find(|verb| self.0.scripts.get(*verb).hash == hash)
    }

    fn info(&self) -> String {
        let restarts = self.status().restarts;
        format!("role:master\r\nmaster_replid:{restarts:040x}\r\nmaster_replid2:{:040x}\r\n", 0)
    }

    fn set(&self, key: Vec<u8>, value: Vec<u8>) {
        let at = self.0.world.recorder.now();
        let mut state = self.state();
        let before = state.values.insert(key.clone(), value);
        state.journal.push((at, key, before));
    }

    fn run_script(&self, call: &ScriptCall<'_>) -> (Reply, Vec<Granted>) {
        let World { clock, operations, .. } = &self.0.world;
        let now = clock.now();
        let mut items = vec![Reply::Bulk(micros(now).to_be_bytes().to_vec())];
        let mut granted = Vec::new();
        for (index, name) in call.keys.iter().enumerate() {
            let bytes = self.state().values.get(name).cloned();
            let before = bytes.map(|bytes| Entry::from_bytes(&bytes).expect("an entry"));
            let (after, reply, listed) = call.run(index, before.clone(), now);
            let operation = call.operation(index);
            let key =
                parse_entry_key(name, &namespace(), Buckets::DEFAULT).expect("an entry's key");
            operations.record(&key, now, &operation, &reply);
            if let (
                Operation::Acquire { owner, .. },
                Replied::Acquired { .. } | Replied::Exhausted { .. },
            ) = (&operation, &reply)
            {
                granted.push((key, *owner));
            }
            if let Some(entry) = after.filter(|after| before.as_ref() != Some(after)) {
                self.set(name.clone(), entry.to_bytes().to_vec());
            }
            if let Some(listed) = listed {
                items.extend([Reply::Int(index as i64 + 1), listed]);
            }
        }
        let reply = if items.len() > 1 { Reply::Array(items) } else { items.remove(0) };
        (reply, granted)
    }
}

/// The namespace of the simulation.
fn namespace() -> campanile_core::Namespace {
    "payments".try_into().expect("a namespace")
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    since.as_micros() as u64
}
