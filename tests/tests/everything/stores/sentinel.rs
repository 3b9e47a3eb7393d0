//! A primary with a replica and sentinels. A failover loses what the replica had not received.

use std::time::Duration;

use campanile_test::history::FaultKind;
use campanile_test::{RedisSentinel, eventually};

use super::redis::flush_scripts;
use super::{RECONNECT, Store};
use crate::TIMEOUT;
use crate::faults::Injector;

/// How far behind a replica may be, on a busy machine.
pub(super) const MAX_REPLICA_LAG: Duration = Duration::from_secs(1);

pub(crate) struct Sentinel {
    redis: RedisSentinel,
    primary: usize,
}

impl Sentinel {
    pub(crate) fn start() -> Self {
        Self { redis: RedisSentinel::start().unwrap(), primary: 0 }
    }

    /// Fails over from the primary.
    fn fail_over(
        &mut self,
        name: &'static str,
        injector: &mut Injector<'_>,
        fault: impl FnOnce(&mut RedisSentinel, usize) -> usize,
    ) {
        let (redis, old) = (&mut self.redis, self.primary);
        let from = injector.now().saturating_sub(MAX_REPLICA_LAG.as_micros() as u64);
        injector.inject(name, &FaultKind::StoreUnavailable, RECONNECT, |_| {
            self.primary = fault(redis, old);
            // The old primary accepts writes until then, and loses them. A further failover needs the
            // replica.
            let is_replica = || {
                let role = redis.server(old).cli(&["ROLE"]).ok()?;
                (role.starts_with("slave") && role.contains("connected")).then_some(())
            };
            eventually(TIMEOUT, is_replica).expect("the old primary becomes a replica");
        });
        injector.record(from, RECONNECT, &FaultKind::StoreLostWrites);
    }
}

impl Store for Sentinel {
    fn url(&self) -> String {
        let urls = self.redis.urls();
        let hosts: Vec<_> = urls.iter().map(|url| url.trim_start_matches("redis://")).collect();
        format!("redis+sentinel://{}/{}", hosts.join(","), self.redis.name())
    }

    fn inject(&mut self, injector: &mut Injector<'_>) {
        let hang = injector.millis(100..3_000);
        match injector.rng.u8(..5) {
            0 => self.fail_over("primary killed", injector, |redis, old| {
                redis.kill(old).unwrap();
                let primary = redis.until_other_primary(old).unwrap();
                redis.restart(old).unwrap();
                primary
            }),
            1 => self.fail_over("primary suspended", injector, |redis, old| {
                redis.pause(old).unwrap();
                let primary = redis.until_other_primary(old).unwrap();
                std::thread::sleep(hang);
                redis.resume(old).unwrap();
                primary
            }),
            2 => self.fail_over("failed over by command", injector, |redis, _| {
                redis.failover().unwrap()
            }),
            _ => flush_scripts(self.redis.server(self.primary), injector),
        }
    }
}
