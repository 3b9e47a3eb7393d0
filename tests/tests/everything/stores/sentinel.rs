//! A primary with a replica and sentinels. A failover loses what the replica had not received.

use std::thread;
use std::time::Duration;

use campanile_test::history::HistoryRecorder;
use campanile_test::{RedisSentinel, eventually};

use super::Store;
use super::redis::flush_scripts;
use super::takeovers::{self, Takeovers};
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
        match injector.rng.u8(..5) {
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
            _ => flush_scripts(self.redis.server(primary(&self.redis)), injector),
        }
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
