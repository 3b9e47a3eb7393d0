//! A deterministic simulation: the layer, the lock keeper and this store run in one thread of virtual
//! time, against a simulated server over a simulated network.
//!
//! The simulation and the network are those of `campanile-test`. Here is the server, which speaks
//! Redis's protocol and runs the scripts as `step`. It is restarted, with or without a loss of its last
//! writes, stalls, and forgets its scripts.
//!
//! All time is virtual. The nonces are not determined by the seed, because the operating system draws
//! them; they are only compared for equality. How a real connection is opened, and the check of a
//! server's settings, are not simulated.

mod planted;
mod resp;
mod script;
mod scripted;
mod server;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use campanile_core::{Entry, StoreKey};
use campanile_test::history::Cause;
use campanile_test::simulation::{
    Backend, BuggyKeeper, Connection, Link, Server as _, World, find_violation, simulate,
    simulate_many,
};
use fastrand::Rng;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisResult};
use tokio::io::DuplexStream;
use tokio::sync::OnceCell;

use self::planted::{Bug, keeper_bug, plant};
pub(crate) use self::resp::Reply;
pub(crate) use self::scripted::ScriptedServers;
use self::server::Server;
use crate::{RedisConfig, RedisStore, Safety};

/// The number of seeds of a normal run, which take a few seconds without optimization.
const SEEDS: u64 = 300;

/// The number of seeds within which each planted bug must be found.
const BUG_SEEDS: u64 = 1_000;

/// The number of bytes in flight on a connection.
const BUFFER: usize = 1 << 20;

thread_local! {
    /// The links of the simulation that runs in this thread, by the name of the process.
    static LINKS: RefCell<BTreeMap<String, Link<Server>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The simulated server, and the links to it.
struct SimulatedRedis {
    world: World,
    server: Server,
    seed: u64,
}

struct SimulatedConnection {
    store: BuggyKeeper<RedisStore>,
    link: Link<Server>,
}

/// Connects to the scripted servers of this thread, or to the simulated server if the address is
/// the name of a simulated process. All handles of the connection share `handles`: when they are
/// dropped, the client closes it.
pub(crate) async fn connect(
    info: &ConnectionInfo,
    handles: Option<&Arc<OnceCell<()>>>,
) -> Option<RedisResult<MultiplexedConnection>> {
    if let Some(stream) = scripted::connect(info) {
        return Some(open(stream, info).await);
    }
    let ConnectionAddr::Tcp(host, _) = info.addr() else { return None };
    let link = LINKS.with_borrow(|links| links.get(host).cloned())?;
    Some(open_link(link, info, handles.map(Arc::downgrade)).await)
}

async fn open_link(
    link: Link<Server>,
    info: &ConnectionInfo,
    handles: Option<Weak<OnceCell<()>>>,
) -> RedisResult<MultiplexedConnection> {
    if link.is_down() || !link.server().availability().is_up() {
        return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
    }
    let (client, server) = tokio::io::duplex(BUFFER);
    let is_open = move || handles.as_ref().is_none_or(|handles| handles.strong_count() > 0);
    tokio::spawn(link.serve(server, is_open));
    open(client, info).await
}

async fn open(stream: DuplexStream, info: &ConnectionInfo) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let settings = info.redis_settings();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(settings, stream, config).await?;
    tokio::spawn(driver);
    Ok(connection)
}

impl Backend for SimulatedRedis {
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
        let config = RedisConfig::new(format!("redis://{process}"))
            .with_command_timeout(self.world.plan.command_timeout())
            .with_safety(Safety::Off);
        let store = loop {
            // A process that cannot connect is started again.
            if let Ok(store) = RedisStore::connect(config.clone()).await {
                break store;
            }
        };
        let store = BuggyKeeper::new(store, self.world.store_clock.clone(), keeper_bug());
        SimulatedConnection { store, link }
    }

    fn break_store(&self, rng: &mut Rng) {
        let duration = self.world.plan.ttl.mul_f64(rng.f64() * 1.5);
        let all = u64::MAX;
        let last = rng.u64(1..=self.world.plan.ttl.as_micros() as u64);
        match rng.u8(..8) {
            0..3 => self.server.flush_scripts(),
            3..5 => self.server.availability().stall(duration),
            5..7 => self.server.restart(duration, None),
            _ => self.server.restart(duration, Some(if rng.bool() { last } else { all })),
        }
    }

    fn heal(&self) {
        self.server.availability().heal();
    }

    fn has_lost_writes(&self) -> bool {
        self.server.has_lost_writes()
    }

    fn entry(&self, key: &StoreKey) -> Option<Entry> {
        self.server.entry(key)
    }
}

impl Connection for SimulatedConnection {
    type Store = BuggyKeeper<RedisStore>;

    fn store(&self) -> BuggyKeeper<RedisStore> {
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
    simulate_many::<SimulatedRedis>(SEEDS, &causes);
}

#[test]
fn same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let hash = || simulate::<SimulatedRedis>(seed).hash;
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        plant(Some(bug));
        let found = find_violation::<SimulatedRedis>(BUG_SEEDS);
        plant(None);
        let Some(seed) = found else { panic!("{bug:?} is not found in {BUG_SEEDS} seeds") };
        // It is sound without the bug.
        simulate::<SimulatedRedis>(seed);
        println!("planted bug: {bug:?}; {seed}");
    }
}
