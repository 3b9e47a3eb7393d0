//! A Redis server in this process.
//!
//! It knows the commands that the store sends, and runs the scripts as `step`. Keys do not expire,
//! because no simulation lasts as long as a retention.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use campanile_core::{Entry, Namespace, StoreKey};
use campanile_test::simulation::{self, Availability, Granted, Requests, Table, World, granted};

use super::planted::{Bug, is_planted};
use super::resp::{Reply, Request, read_request};
use super::script::ScriptCall;
use crate::bucket::Buckets;
use crate::key::{parse_entry_key, write_entry_key};
use crate::script::{Scripts, Verb};

/// The scripts in the order of [`Verb`].
const VERBS: [Verb; 9] = [
    Verb::Acquire,
    Verb::Renew,
    Verb::Complete,
    Verb::Fail,
    Verb::Release,
    Verb::Cancel,
    Verb::GiveUp,
    Verb::Redrive,
    Verb::RecordStep,
];

#[derive(Clone)]
pub(super) struct Server(Arc<Inner>);

struct Inner {
    world: World,
    availability: Availability,
    scripts: Scripts,
    values: Table<Vec<u8>, Vec<u8>>,
    cached: Mutex<BTreeSet<String>>,
}

impl Server {
    pub(super) fn new(world: World) -> Self {
        Self(Arc::new(Inner {
            availability: Availability::new(world.clone(), Duration::ZERO),
            scripts: Scripts::default(),
            values: Table::new(world.clone()),
            cached: Mutex::default(),
            world,
        }))
    }

    /// Stops the server and starts it again after this time. It loses the writes of the last
    /// microseconds, if any are to be lost.
    pub(super) fn restart(&self, duration: Duration, lost: Option<u64>) {
        self.0.availability.restart(duration);
        self.flush_scripts();
        if let Some(last) = lost {
            self.0.values.lose_writes(last);
        }
    }

    /// Forgets all scripts.
    pub(super) fn flush_scripts(&self) {
        self.cached().clear();
    }

    fn cached(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_lost_writes(&self) -> bool {
        self.0.values.has_lost_writes()
    }

    /// Executes a command. Returns the locks that it granted.
    fn reply(&self, request: &Request) -> (Reply, Vec<Granted>) {
        let name = |index: usize| request.get(index).map(|word| String::from_utf8_lossy(word));
        let reply = match (name(0).as_deref(), name(1).as_deref()) {
            (Some("EVALSHA"), Some(hash)) => match self.find_script(hash) {
                Some(verb) if self.cached().contains(hash) => {
                    return self.run_script(&ScriptCall::new(verb, &request[2..]));
                }
                _ if is_planted(Bug::UncachedScriptAnswered) => self.clock(),
                _ => Reply::Error("NOSCRIPT No matching script. Please use EVAL."),
            },
            (Some("EVAL"), Some(text)) => {
                let script = VERBS.into_iter().find(|verb| self.0.scripts.get(*verb).text == text);
                let verb = script.expect("one of the scripts");
                self.cached().insert(self.0.scripts.get(verb).hash.clone());
                return self.run_script(&ScriptCall::new(verb, &request[2..]));
            }
            (Some("GET"), _) => match self.0.values.get(&request[1]) {
                Some(value) => Reply::Bulk(value),
                None => Reply::Nil,
            },
            (Some("SET"), _) => {
                assert_eq!(request[3..], [b"NX".to_vec(), b"GET".to_vec()]);
                let before = self.0.values.get(&request[1]);
                if before.is_none() {
                    self.0.values.set(request[1].clone(), request[2].clone());
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
        let restarts = self.0.availability.restarts();
        format!("role:master\r\nmaster_replid:{restarts:040x}\r\nmaster_replid2:{:040x}\r\n", 0)
    }

    /// What begins the answer of every script, and is all of it if each key had its usual outcome.
    fn clock(&self) -> Reply {
        Reply::Bulk(micros(self.0.world.store_clock.now()).to_be_bytes().to_vec())
    }

    fn run_script(&self, call: &ScriptCall<'_>) -> (Reply, Vec<Granted>) {
        let World { store_clock, operations, .. } = &self.0.world;
        let now = store_clock.now();
        let mut items = vec![self.clock()];
        let mut locks = Vec::new();
        for (index, name) in call.keys.iter().enumerate() {
            let bytes = self.0.values.get(name);
            let before = bytes.map(|bytes| Entry::from_bytes(&bytes).expect("an entry"));
            let (after, reply, listed) = call.run(index, before.clone(), now);
            let operation = call.operation(index);
            let key =
                parse_entry_key(name, &namespace(), Buckets::DEFAULT).expect("an entry's key");
            operations.record(&key, now, &operation, &reply);
            locks.extend(granted(&key, &operation, &reply));
            if let Some(entry) = after.filter(|after| before.as_ref() != Some(after)) {
                self.0.values.set(name.clone(), entry.to_bytes().to_vec());
            }
            if let Some(listed) = listed {
                items.extend([Reply::Int(index as i64 + 1), listed]);
            }
        }
        let reply = if items.len() > 1 { Reply::Array(items) } else { items.remove(0) };
        (reply, locks)
    }
}

impl simulation::Server for Server {
    type Session = ();
    type Request = Request;

    fn availability(&self) -> &Availability {
        &self.0.availability
    }

    fn entry(&self, key: &StoreKey) -> Option<Entry> {
        let mut name = Vec::new();
        write_entry_key(&mut name, key, Buckets::DEFAULT);
        let bytes = self.0.values.get(&name)?;
        Some(Entry::from_bytes(&bytes).expect("an entry"))
    }

    async fn read(&self, (): &(), requests: &mut Requests) -> io::Result<Option<Request>> {
        read_request(requests).await
    }

    fn execute(&self, (): &mut (), request: &Request) -> (Vec<u8>, Vec<Granted>) {
        let (reply, locks) = self.reply(request);
        let mut encoded = Vec::new();
        reply.write(&mut encoded);
        (encoded, locks)
    }

    fn is_reply_kept(&self, request: &Request) -> bool {
        is_planted(Bug::StaleReply) && request[0] != b"CLIENT"
    }

    fn is_silence_kept(&self) -> bool {
        is_planted(Bug::ConnectionKept)
    }
}

/// The namespace of the simulation.
fn namespace() -> Namespace {
    "payments".try_into().expect("a namespace")
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    since.as_micros() as u64
}
