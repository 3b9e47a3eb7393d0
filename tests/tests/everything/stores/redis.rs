//! A single Redis, or Valkey, that keeps everything it has acknowledged.

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
        match (injector.rng.u8(..8), clock) {
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
            _ => network::inject(proxy, injector),
        }
    }
}

/// Flushes the scripts, which the consumers must not notice.
pub(super) fn flush_scripts(redis: &RedisServer, injector: &Injector<'_>) {
    injector.faults.count("scripts flushed");
    redis.cli(&["SCRIPT", "FLUSH"]).unwrap();
}
