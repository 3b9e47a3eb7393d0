//! A cluster of masters with replicas. A takeover loses what the replica had not received.

use std::collections::BTreeSet;
use std::thread;

use campanile_test::history::{FaultKind, HistoryRecorder};
use campanile_test::{RedisCluster, eventually};

use super::redis::{flush_scripts, run_out_of_memory};
use super::takeovers::{self, Takeovers};
use super::{RECONNECT, Store};
use crate::TIMEOUT;
use crate::faults::Injector;

/// So long that a busy machine hardly ever looks like a failure, in milliseconds.
const NODE_TIMEOUT: &str = "2000";

/// Number of buckets of a namespace.
const BUCKETS: u16 = 16;

pub(crate) struct Cluster {
    redis: RedisCluster,
    /// The slots of the namespace's buckets.
    slots: Vec<u16>,
    takeovers: Takeovers,
}

impl Cluster {
    pub(crate) fn start(namespace: &str) -> Self {
        let redis = RedisCluster::builder().replicas(1);
        let redis = redis.config("cluster-node-timeout", NODE_TIMEOUT).start().unwrap();
        let slot = |bucket| redis.slot_of(&format!("{{{namespace}:{bucket:02x}}}")).unwrap();
        let slots = (0..BUCKETS).map(slot).collect();
        let mut takeovers = Takeovers::default();
        takeovers.set(0, epoch(&redis));
        Self { redis, slots, takeovers }
    }

    /// Breaks the master of a slot until its replica has taken over.
    fn take_over(
        &mut self,
        name: &'static str,
        injector: &mut Injector<'_>,
        fault: impl FnOnce(&mut RedisCluster, usize),
        repair: impl FnOnce(&mut RedisCluster, usize),
    ) {
        let slot = self.random_slot(injector);
        let redis = &mut self.redis;
        let master = redis.owner_of(slot).unwrap();
        takeovers::inject(name, injector, |_| {
            fault(redis, master);
            let taken_over = || redis.owner_of(slot).filter(|owner| *owner != master);
            eventually(TIMEOUT, taken_over).expect("the replica takes over");
            repair(redis, master);
            // It accepts writes until then, and loses them. A further takeover needs the replica.
            eventually(TIMEOUT, || is_synchronized(redis, master).then_some(()))
                .expect("the old master becomes a replica");
        });
    }

    fn random_slot(&self, injector: &mut Injector<'_>) -> u16 {
        self.slots[injector.rng.usize(..self.slots.len())]
    }

    /// Finds the nodes that have slots of the namespace.
    fn masters(&self) -> Vec<usize> {
        let owners: BTreeSet<_> =
            self.slots.iter().filter_map(|slot| self.redis.owner_of(*slot)).collect();
        owners.into_iter().collect()
    }
}

impl Store for Cluster {
    fn url(&self) -> String {
        let urls = self.redis.urls();
        let hosts: Vec<_> = urls.iter().map(|url| url.trim_start_matches("redis://")).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    fn record_takeovers(&mut self, recorder: &HistoryRecorder) {
        let asked = recorder.now();
        self.takeovers.record(recorder, asked, epoch(&self.redis));
    }

    fn inject(&mut self, injector: &mut Injector<'_>) {
        self.inject_any(injector);
        self.takeovers.set(injector.now(), epoch(&self.redis));
    }
}

impl Cluster {
    fn inject_any(&mut self, injector: &mut Injector<'_>) {
        let hang = injector.millis(100..3_000);
        match injector.rng.u8(..7) {
            0 => self.take_over(
                "master killed",
                injector,
                |redis, master| redis.kill(master).unwrap(),
                |redis, master| redis.restart(master).unwrap(),
            ),
            1 => self.take_over(
                "master suspended",
                injector,
                |redis, master| redis.pause(master).unwrap(),
                |redis, master| {
                    thread::sleep(hang);
                    redis.resume(master).unwrap();
                },
            ),
            2 => {
                let slot = self.random_slot(injector);
                let master = self.redis.owner_of(slot).unwrap();
                let replicas = self.redis.replicas_of(master);
                let Some(&replica) = replicas.first() else { return };
                let kind = FaultKind::StoreUnavailable;
                injector.inject("replica promoted", &kind, RECONNECT, |_| {
                    self.redis.promote(replica).unwrap();
                    eventually(TIMEOUT, || is_synchronized(&self.redis, master).then_some(()))
                        .expect("the old master becomes a replica");
                });
            }
            3 | 4 => {
                if !injector.faults.allows("slots moved") {
                    return;
                }
                injector.faults.count("slots moved");
                for _ in 0..injector.rng.usize(1..8) {
                    let slot = self.random_slot(injector);
                    // A replica may take over by itself meanwhile, on a busy machine.
                    let moved = || {
                        let masters = self.masters();
                        let to = masters[injector.rng.usize(..masters.len())];
                        let is_there = self.redis.owner_of(slot) == Some(to);
                        (is_there || self.redis.move_slot(slot, to).is_ok()).then_some(())
                    };
                    eventually(TIMEOUT, moved).expect("the slot moves");
                }
            }
            5 => {
                let slot = self.random_slot(injector);
                let redis = self.redis.node(self.redis.owner_of(slot).unwrap());
                let kind = FaultKind::StoreUnavailable;
                injector.inject("store out of memory", &kind, RECONNECT, |injector| {
                    run_out_of_memory(redis, injector);
                });
            }
            _ => {
                let masters = self.masters();
                let master = masters[injector.rng.usize(..masters.len())];
                flush_scripts(self.redis.node(master), injector);
            }
        }
    }
}

/// Checks whether a node is a replica with its master's data.
fn is_synchronized(redis: &RedisCluster, node: usize) -> bool {
    let role = redis.node(node).cli(&["ROLE"]);
    role.is_ok_and(|role| role.starts_with("slave") && role.lines().nth(3) == Some("connected"))
}

/// The latest epoch that a node knows, which each takeover increases.
fn epoch(redis: &RedisCluster) -> u64 {
    let epoch = |node: usize| {
        let info = redis.node(node).cli(&["CLUSTER", "INFO"]).ok()?;
        let line = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"))?;
        line.trim().parse::<u64>().ok()
    };
    eventually(TIMEOUT, || (0..redis.len()).filter_map(epoch).max()).expect("a node answers")
}
