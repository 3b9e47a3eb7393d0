//! A deterministic simulation: the layer, the lock keeper and this store, with its pool and
//! tokio-postgres, run in one thread of virtual time, against a simulated server over a simulated network.
//!
//! The simulation and the network are those of `campanile-test`. Here is the server, which speaks
//! Postgres's protocol and runs the functions of the schema as `step`. It is restarted, or replaced by
//! another one, with or without a loss of its last writes; it stalls, refuses to start, locks rows for
//! longer than a call waits, and fails calls that conflict with others.
//!
//! All time is virtual. The nonces are not determined by the seed, because the operating system draws
//! them; they are only compared for equality. Opening a socket, TLS, and the question whether a server
//! accepts writes are not simulated: a server that does not accept them refuses the connection.

mod function;
mod planted;
mod server;
mod session;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use campanile_core::{Entry, StoreKey};
use campanile_test::history::Cause;
use campanile_test::simulation::{
    Backend, BuggyKeeper, Connection, Link, Server as _, World, find_violation, simulate,
    simulate_many,
};
use fastrand::Rng;
use tokio::io::DuplexStream;
use tokio_postgres::config::Host;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Error, NoTls};

use self::planted::{Bug, keeper_bug, plant};
use self::server::Server;
use crate::{PgConfig, PgStore};

/// The number of seeds of a normal run, which take a few seconds without optimization.
const SEEDS: u64 = 300;

/// The number of seeds within which each planted bug must be found.
const BUG_SEEDS: u64 = 1_000;

thread_local! {
    /// The links of the simulation that runs in this thread, by the name of the process.
    static LINKS: RefCell<BTreeMap<String, Link<Server>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The simulated server, and the links to it.
struct SimulatedPostgres {
    world: World,
    server: Server,
    seed: u64,
}

struct SimulatedConnection {
    store: BuggyKeeper<PgStore>,
    link: Link<Server>,
}

type Connected = (Client, tokio_postgres::Connection<DuplexStream, NoTlsStream>);

/// Connects to the simulated server if the host is the name of a simulated process.
pub(crate) async fn connect(config: &Config) -> Option<Result<Connected, Error>> {
    // The buffers of a socket.
    const BUFFER: usize = 1 << 20;
    let [Host::Unix(path)] = config.get_hosts() else { return None };
    let process = path.to_str()?.strip_prefix('/')?;
    let link = LINKS.with_borrow(|links| links.get(process).cloned())?;
    let (client, server) = tokio::io::duplex(BUFFER);
    let is_refused =
        link.is_down() || config.get_ports().iter().any(|port| !link.server().is_primary(*port));
    match is_refused {
        true => drop(server),
        false => drop(tokio::spawn(link.serve(server, || true))),
    }
    Some(config.connect_raw(client, NoTls).await)
}

impl Backend for SimulatedPostgres {
    type Connection = SimulatedConnection;

    fn start(world: &World, rng: &mut Rng) -> Self {
        LINKS.take();
        Self { world: world.clone(), server: Server::new(world.clone()), seed: rng.u64(..) }
    }

    async fn connect(&self, process: &str) -> SimulatedConnection {
        let number: u64 = process.bytes().fold(0, |sum, byte| sum * 31 + u64::from(byte));
        let seed = self.seed ^ number;
        let link = Link::new(process, self.world.clone(), self.server.clone(), seed);
        LINKS.with_borrow_mut(|links| links.insert(process.into(), link.clone()));
        let [one, other] = Server::PORTS;
        // The name of a socket's folder, which nothing looks up.
        let url = format!("host=/{process},/{process} port={one},{other} user=app");
        let config = PgConfig::new(url)
            // Reading the system's authorities would take most of the time.
            .with_ca("")
            .with_command_timeout(self.world.plan.command_timeout());
        let store = loop {
            // A process that cannot connect is started again.
            if let Ok(store) = PgStore::connect(config.clone()).await {
                break store;
            }
        };
        let store = BuggyKeeper::new(store, self.world.store_clock.clone(), keeper_bug());
        SimulatedConnection { store, link }
    }

    fn break_store(&self, rng: &mut Rng) {
        let ttl = self.world.plan.ttl;
        let duration = ttl.mul_f64(rng.f64() * 1.5);
        let (is_other, all) = (rng.bool(), u64::MAX);
        let last = rng.u64(1..=ttl.as_micros() as u64);
        match rng.u8(..8) {
            0..2 => self.server.lock_rows(duration, rng.u8(..)),
            2 => self.server.conflict(duration / 4),
            3..5 => self.server.availability().stall(duration),
            5..7 => self.server.restart(duration, is_other, None),
            _ => self.server.restart(duration, is_other, Some(if rng.bool() { last } else { all })),
        }
    }

    fn heal(&self) {
        self.server.heal();
    }

    fn has_lost_writes(&self) -> bool {
        self.server.has_lost_writes()
    }

    fn entry(&self, key: &StoreKey) -> Option<Entry> {
        self.server.entry(key)
    }
}

impl Connection for SimulatedConnection {
    type Store = BuggyKeeper<PgStore>;

    fn store(&self) -> BuggyKeeper<PgStore> {
        self.store.clone()
    }

    fn inject_faults(&self, _: &mut Rng) {
        self.link.inject_faults();
    }

    fn break_for(&self, duration: Duration, _: &mut Rng) {
        self.link.break_for(duration);
    }

    fn heal(&self) {
        self.link.heal();
    }

    fn violation_when_settled(&self) -> Option<String> {
        self.link.abandoned_lock()
    }
}

#[test]
fn every_seed_is_sound_under_network_faults() {
    let causes = [
        Cause::Failed,
        Cause::KilledAfterEffect,
        Cause::KilledBeforeEffect,
        Cause::Dropped,
        Cause::Suspended,
        Cause::StoreUnavailable,
        Cause::NetworkCut,
        Cause::StoreLostWrites,
    ];
    simulate_many::<SimulatedPostgres>(SEEDS, &causes);
}

#[test]
fn same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let hash = || simulate::<SimulatedPostgres>(seed).hash;
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        plant(Some(bug));
        let found = find_violation::<SimulatedPostgres>(BUG_SEEDS);
        plant(None);
        let Some(seed) = found else { panic!("{bug:?} is not found in {BUG_SEEDS} seeds") };
        // It is sound without the bug.
        simulate::<SimulatedPostgres>(seed);
        println!("planted bug: {bug:?}; {seed}");
    }
}
