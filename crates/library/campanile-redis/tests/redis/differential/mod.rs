//! Compares the scripts with `step`: for any command on any stored value, both must answer and
//! store the same.

mod draw;
mod fuzzer;
mod mixed_fleet;
mod model;
mod mutants;
mod runner;
mod servers;
mod shared_keys;
mod v0_1;

use campanile_redis::{RedisStore, Verb};
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use self::fuzzer::Difference;
use self::runner::Runner;
use self::servers::Servers;
use crate::support::setting;

/// The default; `CAMPANILE_DIFFERENTIAL_OPS` sets another number.
const OPERATIONS: usize = 30_000;

/// For topologies that run the same scripts and differ only in how the servers are reached.
const OPERATIONS_PER_TOPOLOGY: usize = 10_000;

fn seed() -> u64 {
    let seed = setting("CAMPANILE_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("CAMPANILE_SEED={seed}");
    seed
}

fn run(
    servers: &Servers,
    replaced: &[(Verb, &'static str)],
    operations: usize,
) -> Result<Runner, Difference> {
    let config = servers.config();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(RedisStore::connect_with_scripts(config, replaced)).unwrap();
    let mut runner = Runner::new(runtime, store, servers, seed());
    while runner.fuzzer.operations() < operations {
        runner.batch()?;
    }
    Ok(runner)
}

fn single_server() -> Servers {
    Servers::Single(RedisServer::start().unwrap())
}

fn assert_same(servers: &Servers, operations: usize) {
    let operations = setting("CAMPANILE_DIFFERENTIAL_OPS")
        .map_or(operations, |operations| usize::try_from(operations).unwrap());
    match run(servers, &[], operations) {
        Ok(runner) => {
            println!(
                "{} operations, 0 differences; {:?}",
                runner.fuzzer.operations(),
                runner.fuzzer.replies()
            );
            runner.fuzzer.assert_every_reply_was_seen();
        }
        Err(difference) => panic!("{difference}"),
    }
}

#[test]
fn scripts_match_step_on_single_server() {
    assert_same(&single_server(), OPERATIONS);
}

#[test]
fn scripts_match_step_on_valkey() {
    let valkey = RedisServer::builder().valkey().start().unwrap();
    assert_same(&Servers::Single(valkey), OPERATIONS);
}

#[test]
fn scripts_match_step_on_cluster() {
    assert_same(&Servers::Cluster(RedisCluster::start().unwrap()), OPERATIONS_PER_TOPOLOGY);
}

#[test]
fn scripts_match_step_on_valkey_cluster() {
    let cluster = RedisCluster::builder().valkey().start().unwrap();
    assert_same(&Servers::Cluster(cluster), OPERATIONS_PER_TOPOLOGY);
}

#[test]
fn scripts_match_step_behind_sentinels() {
    let redis = RedisSentinel::builder().replicas(0).sentinels(1).start().unwrap();
    assert_same(&Servers::Sentinel(redis), OPERATIONS_PER_TOPOLOGY);
}

#[test]
fn scripts_match_step_behind_valkey_sentinels() {
    let valkey = RedisSentinel::builder().valkey().replicas(0).sentinels(1).start().unwrap();
    assert_same(&Servers::Sentinel(valkey), OPERATIONS_PER_TOPOLOGY);
}
