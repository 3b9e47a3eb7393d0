//! The cost of a message on a cluster, compared with a single server.

use campanile::{BoxError, IdempotencyLayer, RedisConfig, RedisStore};
use campanile_test::{RedisCluster, RedisServer};

use super::measured::Measured;
use super::{ROUNDS, Stage, of_scripts};
use crate::guarded::{Handler, guarded, key};
use crate::report::{Goal, Report, Row};

/// A multiple of every in-flight count below.
const MESSAGES: u64 = 204_800;

/// Messages in flight. Each call to a cluster covers a single bucket, so few messages in flight
/// make small calls, which cost more per message.
const AT_ONCE: [(u64, &str, &str, Option<Goal>); 3] = [
    (256, "three masters, 256 at once", "keys of each of their calls, 256 at once", None),
    (1024, "three masters, 1 024 at once", "keys of each of their calls, 1 024 at once", None),
    (
        4096,
        "three masters, 4 096 at once",
        "keys of each of their calls, 4 096 at once",
        Some(Goal::AtLeast(0.9)),
    ),
];

/// The measurements of one round.
struct Round {
    measured: Measured,
    /// Mean number of keys per script call.
    keys: f64,
}

pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    let cluster = RedisCluster::start()?;
    let masters: Vec<_> = (0..cluster.len()).map(|node| cluster.node(node)).collect();
    let layer = |config: RedisConfig| {
        let store = stage.runtime.block_on(RedisStore::connect(config))?;
        Ok::<_, BoxError>(IdempotencyLayer::new(store, "cluster", key)?)
    };
    let on_three = layer(RedisConfig::cluster(cluster.urls()))?;
    let on_one = layer(RedisConfig::new(stage.redis.url()))?;
    // With one bucket, the cluster's calls are as large as those of a single server.
    let lonely = RedisCluster::builder().masters(1).start()?;
    let on_lonely = layer(RedisConfig::cluster(lonely.urls()).with_buckets(1)?)?;
    let (mut values, mut against) = (vec![], vec![]);
    let mut first = 0;
    for round in 0..=ROUNDS {
        first += MESSAGES;
        let in_cluster = measure(stage, &[lonely.node(0)], guarded(&on_lonely), first, 256)?;
        let alone = measure(stage, &[&stage.redis], guarded(&on_one), first, 256)?;
        if round > 0 {
            values.push(for_a_second(&in_cluster));
            against.push(for_a_second(&alone));
        }
    }
    let (name, unit) = ("one master with one bucket, 256 at once", "for a CPU s");
    let against = Some(("one server", against));
    // The cost of cluster mode for Redis itself.
    report.add(Row { area: "redis", name, unit, values, against, goal: None });
    drop(lonely);
    for (at_once, name, keys, goal) in AT_ONCE {
        let (mut three, mut one) = (vec![], vec![]);
        // The first round is a warm-up and does not count.
        for round in 0..=ROUNDS {
            first += MESSAGES;
            let many = measure(stage, &masters, guarded(&on_three), first, at_once)?;
            let alone = measure(stage, &[&stage.redis], guarded(&on_one), first, at_once)?;
            if round > 0 {
                three.push(many);
                one.push(alone);
            }
        }
        let mut row = |name, unit, figure: fn(&Round) -> f64, goal| {
            let of = |rounds: &[Round]| rounds.iter().map(figure).collect();
            let (values, against) = (of(&three), Some(("one server", of(&one))));
            report.add(Row { area: "redis", name, unit, values, against, goal });
        };
        row(name, "for a CPU s", for_a_second, goal);
        // The limiting factor: a call covers the keys of a single bucket, and each call has a cost.
        row(keys, "keys", |round| round.keys, None);
        row("our processor time for a message there", "us", |round| round.measured.ours, None);
    }
    Ok(())
}

fn measure(
    stage: &Stage,
    servers: &[&RedisServer],
    handler: impl Handler,
    first: u64,
    at_once: u64,
) -> Result<Round, BoxError> {
    for server in servers {
        server.cli(&["FLUSHALL"])?;
        server.cli(&["CONFIG", "RESETSTAT"])?;
    }
    let measured = Measured::of(stage, servers, handler, first..first + MESSAGES, at_once)?;
    let calls =
        servers.iter().map(|server| of_scripts(server, "calls=")).sum::<Result<f64, _>>()?;
    // Each key is acquired and completed.
    Ok(Round { measured, keys: 2.0 * MESSAGES as f64 / calls })
}

/// Messages per second of processor time of all servers.
fn for_a_second(round: &Round) -> f64 {
    1e6 / round.measured.redis
}
