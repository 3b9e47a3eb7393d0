//! Compares the scripts with `step`: for any command on any stored value, both must answer and
//! store the same.

mod draw;
mod model;
mod play;
mod runner;
mod servers;

use campanile_redis::{RedisStore, Verb};
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use self::play::Difference;
use self::runner::Runner;
use self::servers::Servers;
use crate::support::setting;

/// The default; `CAMPANILE_DIFFERENTIAL_OPS` sets another number.
const OPERATIONS: usize = 30_000;

/// For topologies that run the same scripts and differ only in how the servers are reached.
const OPERATIONS_ELSEWHERE: usize = 10_000;

/// A broken script must be found within this many operations. The rarest fault needs some
/// thousands, so the result does not depend on chance.
const OPERATIONS_TO_FIND: usize = 1_000_000;

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
    while runner.play.operations() < operations {
        runner.batch()?;
    }
    Ok(runner)
}

fn one() -> Servers {
    Servers::One(RedisServer::start().unwrap())
}

fn assert_same(servers: &Servers, operations: usize) {
    let operations = setting("CAMPANILE_DIFFERENTIAL_OPS")
        .map_or(operations, |operations| usize::try_from(operations).unwrap());
    match run(servers, None, operations) {
        Ok(runner) => {
            println!(
                "{} operations, 0 differences; {:?}",
                runner.play.operations(),
                runner.play.replies()
            );
            runner.play.assert_every_reply_was_seen();
        }
        Err(difference) => panic!("{difference}"),
    }
}

#[test]
fn scripts_and_step_answer_and_store_the_same() {
    assert_same(&one(), OPERATIONS);
}

#[test]
fn scripts_and_step_answer_and_store_the_same_on_a_cluster() {
    assert_same(&Servers::Cluster(RedisCluster::start().unwrap()), OPERATIONS_ELSEWHERE);
}

#[test]
fn scripts_and_step_answer_and_store_the_same_behind_sentinels() {
    let redis = RedisSentinel::builder().replicas(0).sentinels(1).start().unwrap();
    assert_same(&Servers::Sentinel(redis), OPERATIONS_ELSEWHERE);
}

fn assert_found(verb: Verb, text: &'static str) {
    match run(&one(), Some((verb, text)), OPERATIONS_TO_FIND) {
        Ok(runner) => panic!("no difference found in {} operations", runner.play.operations()),
        Err(difference) => println!("{difference}"),
    }
}

#[test]
fn a_completion_by_a_stale_token_would_be_found() {
    assert_found(Verb::Complete, include_str!("../broken/complete_any_token.lua"));
}

#[test]
fn a_takeover_that_counts_no_attempt_would_be_found() {
    assert_found(Verb::Acquire, include_str!("../broken/acquire_uncounted.lua"));
}

#[test]
fn a_deadline_by_the_clients_clock_would_be_found() {
    assert_found(Verb::Acquire, include_str!("../broken/acquire_client_clock.lua"));
}
