//! A primary with a replica and sentinels. A failover loses what the replica had not received.

use std::thread;
use std::time::Duration;

use campanile_test::history::{FaultKind, HistoryRecorder};
use campanile_test::{RedisSentinel, eventually};

use super::redis::flush_scripts;
use super::takeovers::{self, Takeovers};
use super::{RECONNECT, Store};
use crate::TIMEOUT;
use crate::faults::Injector;

/// So long that a busy machine hardly ever looks like a failure.
const DOWN_AFTER: Duration = Duration::from_secs(2);

pub(crate) struct Sentinel {
    redis: RedisSentinel,
    takeovers: Takeovers,
}

impl Sentinel {
    pub(crate) fn start() -> Self {
        let redis = RedisSentinel::builder().down_after(DOWN_AFTER).start().unwrap();
        let mut takeovers = Takeovers::default();
        takeovers.set(0, epoch(&redis));
        Self { redis, takeovers }
    }

    /// Makes the replica take over from the primary.
    fn fail_over(
        &mut self,
        name: &'static str,
        injector: &mut Injector<'_>,
        fault: impl FnOnce(&mut RedisSentinel, usize),
    ) {
        let redis = &mut self.redis;
        let old = primary(redis);
        takeovers::inject(name, injector, |_| {
            fault(redis, old);
            // The old primary accepts writes until then, and loses them. A further failover needs the
            // replica.
            let is_replica = || {
                let role = redis.server(old).cli(&["ROLE"]).ok()?;
                let is_linked = role.lines().nth(3) == Some("connected");
                (role.starts_with("slave") && is_linked).then_some(())
            };
            eventually(TIMEOUT, is_replica).expect("the old primary becomes a replica");
        });
        self.takeovers.set(injector.now(), epoch(redis));
    }
}

impl Store for Sentinel {
    fn url(&self) -> String {
        let urls = self.redis.urls();
        let hosts: Vec<_> = urls.iter().map(|url| url.trim_start_matches("redis://")).collect();
        format!("redis+sentinel://{}/{}", hosts.join(","), self.redis.name())
    }

    fn record_takeovers(&mut self, recorder: &HistoryRecorder) {
        let asked = recorder.now();
        self.takeovers.record(recorder, asked, epoch(&self.redis));
    }

    fn inject(&mut self, injector: &mut Injector<'_>) {
        let hang = injector.millis(100..3_000);
        match injector.rng.u8(..8) {
            0 => self.fail_over("primary killed", injector, |redis, old| {
                redis.kill(old).unwrap();
                redis.until_other_primary(old).unwrap();
                redis.restart(old).unwrap();
            }),
            1 => self.fail_over("primary suspended", injector, |redis, old| {
                redis.pause(old).unwrap();
                redis.until_other_primary(old).unwrap();
                thread::sleep(hang);
                redis.resume(old).unwrap();
            }),
            2 => self.fail_over("failed over by command", injector, |redis, _| {
                redis.failover().unwrap();
            }),
            3 => self.allow_eviction(injector),
            4 => self.demand_replicas(injector),
            _ => flush_scripts(self.redis.server(primary(&self.redis)), injector),
        }
    }
}

impl Sentinel {
    /// Lets the primary evict entries, as operators do when it is full, and mostly makes it do so.
    fn allow_eviction(&self, injector: &mut Injector<'_>) {
        let redis = self.redis.server(primary(&self.redis));
        let policies = ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"];
        let policy = injector.rng.choice(policies).expect("there are some");
        let evicts = injector.rng.u8(..3) > 0;
        let kind = FaultKind::StoreEvicted;
        injector.inject("eviction allowed", &kind, Duration::ZERO, |injector| {
            redis.cli(&["CONFIG", "SET", "maxmemory-policy", policy]).unwrap();
            if evicts {
                let memory = redis.cli(&["INFO", "memory"]).unwrap();
                let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
                let used: u64 = used.expect("it is there").trim().parse().unwrap();
                let limit = (used - used / injector.rng.u64(10..50)).to_string();
                redis.cli(&["CONFIG", "SET", "maxmemory", &limit]).unwrap();
            }
            injector.sleep(100..9_000);
            redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
            redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
        });
    }

    /// Lets the primary refuse all writes, because it has fewer replicas than an operator demands.
    fn demand_replicas(&self, injector: &mut Injector<'_>) {
        let redis = self.redis.server(primary(&self.redis));
        let kind = FaultKind::StoreUnavailable;
        injector.inject("too few replicas", &kind, RECONNECT, |injector| {
            redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "2"]).unwrap();
            injector.sleep(100..9_000);
            redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
        });
    }
}

fn primary(redis: &RedisSentinel) -> usize {
    eventually(TIMEOUT, || redis.primary()).expect("the sentinels agree on a primary")
}

/// The epoch of the last failover, of which the sentinels that started it know first.
fn epoch(redis: &RedisSentinel) -> u64 {
    let epoch = |sentinel: usize| {
        let state = redis.sentinel(sentinel).cli(&["SENTINEL", "MASTER", redis.name()]).ok()?;
        let value = state.lines().skip_while(|line| *line != "config-epoch").nth(1)?;
        value.parse::<u64>().ok()
    };
    eventually(TIMEOUT, || (0..3).filter_map(epoch).max()).expect("a sentinel answers")
}
