//! A single Redis, or Valkey, that keeps everything it has acknowledged.

use std::thread;
use std::time::Duration;

use campanile_test::history::FaultKind;
use campanile_test::{Proxy, RedisServer};

use super::clock::SteppedClock;
use super::{RECONNECT, Store, network};
use crate::faults::Injector;

pub(crate) struct Redis {
    redis: RedisServer,
    proxy: Proxy,
    clock: Option<SteppedClock>,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a Valkey with a clock that the campaign can set.
    pub(crate) fn start_with_clock() -> Self {
        Self::start_with(Some(SteppedClock::new()))
    }

    fn start_with(clock: Option<SteppedClock>) -> Self {
        // Only `always` keeps all that was acknowledged.
        let builder = RedisServer::builder().append_only(true).config("appendfsync", "always");
        let builder = match &clock {
            Some(clock) => clock.give_to(builder),
            None => builder,
        };
        let redis = builder.start().unwrap();
        let proxy = Proxy::to(redis.addr()).unwrap();
        Self { redis, proxy, clock }
    }
}

impl Store for Redis {
    fn url(&self) -> String {
        self.redis.url_through(self.proxy.addr())
    }

    fn direct_url(&self) -> String {
        self.redis.url()
    }

    fn inject(&mut self, injector: &mut Injector<'_>) {
        let Self { redis, proxy, clock } = self;
        match (injector.rng.u8(..13), clock) {
            (0 | 1, _) => {
                let kind = FaultKind::StoreUnavailable;
                injector.inject("store killed", &kind, RECONNECT, |injector| {
                    redis.kill().unwrap();
                    injector.sleep(0..4_000);
                    redis.restart().unwrap();
                });
            }
            (2 | 3, _) => {
                let kind = FaultKind::StoreUnavailable;
                injector.inject("store suspended", &kind, RECONNECT, |injector| {
                    redis.pause().unwrap();
                    injector.sleep(100..9_000);
                    redis.resume().unwrap();
                });
            }
            (4, _) => flush_scripts(redis, injector),
            (5, Some(clock)) => clock.step(redis, injector),
            (6, _) => {
                let kind = FaultKind::StoreUnavailable;
                injector.inject("store out of memory", &kind, RECONNECT, |injector| {
                    run_out_of_memory(redis, injector);
                });
            }
            (7, _) => make_replica(redis, injector),
            (8, _) => load_slowly(redis, injector),
            (9, None) => turn_off_append_only_file(redis, injector),
            _ => network::inject(proxy, injector),
        }
    }
}

/// Flushes the scripts, which the consumers must not notice.
pub(super) fn flush_scripts(redis: &RedisServer, injector: &Injector<'_>) {
    if !injector.faults.allows("scripts flushed") {
        return;
    }
    injector.faults.count("scripts flushed");
    redis.cli(&["SCRIPT", "FLUSH"]).unwrap();
}

/// Lets a server refuse all writes for a moment.
pub(super) fn run_out_of_memory(redis: &RedisServer, injector: &mut Injector<'_>) {
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    injector.sleep(100..9_000);
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
}

/// Makes the server the replica of one that does not exist, which is read only and keeps its data.
fn make_replica(redis: &RedisServer, injector: &mut Injector<'_>) {
    let kind = FaultKind::StoreUnavailable;
    injector.inject("store read only", &kind, RECONNECT, |injector| {
        redis.cli(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
        injector.sleep(100..9_000);
        redis.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    });
}

/// Restarts the server, which takes a while to load its data.
fn load_slowly(redis: &mut RedisServer, injector: &mut Injector<'_>) {
    let loading = injector.millis(200..9_000);
    injector.inject("store loading", &FaultKind::StoreUnavailable, RECONNECT, |_| {
        // A key is written several times.
        let keys: u32 = redis.cli(&["DBSIZE"]).unwrap().trim().parse().unwrap();
        redis.restart_slowly(loading / (4 * keys + 1)).unwrap();
    });
}

/// Kills the server a moment after its append-only file was turned off, which loses what was written since.
fn turn_off_append_only_file(redis: &mut RedisServer, injector: &mut Injector<'_>) {
    let lost = injector.millis(0..1_000);
    let from = injector.now();
    let name = "append-only file turned off";
    if !injector.faults.allows(name) {
        return;
    }
    injector.inject(name, &FaultKind::StoreUnavailable, RECONNECT, |_| {
        redis.cli(&["CONFIG", "SET", "appendonly", "no"]).unwrap();
        thread::sleep(lost);
        redis.kill().unwrap();
        redis.restart().unwrap();
    });
    injector.record(from, Duration::ZERO, &FaultKind::StoreLostWrites);
}
