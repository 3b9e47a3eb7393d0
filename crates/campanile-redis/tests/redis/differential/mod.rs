//! Compares the scripts with `step`: for any command on any stored value, both must answer and
//! store the same.

mod draw;
mod fuzzer;
mod model;
mod runner;
mod servers;

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

/// A broken script must be found within this many operations. The rarest fault needs some
/// thousands, so the result does not depend on chance.
const MAX_OPERATIONS_TO_DETECT: usize = 1_000_000;

fn seed() -> u64 {
    let seed = setting("CAMPANILE_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("CAMPANILE_SEED={seed}");
    seed
}

fn run(
    servers: &Servers,
    replaced: Option<(Verb, &'static str)>,
    operations: usize,
) -> Result<Runner, Difference> {
    let config = servers.config();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connected = runtime.block_on(async {
        match replaced {
            Some((verb, text)) => RedisStore::connect_with_script(config, verb, text).await,
            None => RedisStore::connect(config).await,
        }
    });
    let store = connected.unwrap();
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
    match run(servers, None, operations) {
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
fn scripts_match_step_on_cluster() {
    assert_same(&Servers::Cluster(RedisCluster::start().unwrap()), OPERATIONS_PER_TOPOLOGY);
}

#[test]
fn scripts_match_step_behind_sentinels() {
    let redis = RedisSentinel::builder().replicas(0).sentinels(1).start().unwrap();
    assert_same(&Servers::Sentinel(redis), OPERATIONS_PER_TOPOLOGY);
}

fn assert_detected(verb: Verb, text: &'static str) {
    match run(&single_server(), Some((verb, text)), MAX_OPERATIONS_TO_DETECT) {
        Ok(runner) => panic!("no difference found in {} operations", runner.fuzzer.operations()),
        Err(difference) => println!("{difference}"),
    }
}

#[test]
fn stale_token_completion_mutant_is_detected() {
    assert_detected(Verb::Complete, include_str!("../broken/complete_any_token.lua"));
}

#[test]
fn uncounted_takeover_mutant_is_detected() {
    assert_detected(Verb::Acquire, include_str!("../broken/acquire_uncounted.lua"));
}

#[test]
fn client_clock_mutant_is_detected() {
    assert_detected(Verb::Acquire, include_str!("../broken/acquire_client_clock.lua"));
}
