//! The cost of a message on a cluster, compared with a single server.

use campanile::{BoxError, IdempotencyLayer, RedisConfig, RedisStore};
use campanile_test::{RedisCluster, RedisServer};

use super::sample::Sample;
use super::{Environment, ROUNDS, script_stat};
use crate::handlers::{Handler, key, with_layer};
use crate::report::{Goal, Report, Row};

/// A multiple of every in-flight count below.
const MESSAGES: u64 = 204_800;

/// Messages in flight. Each call to a cluster covers a single bucket, so few messages in flight
/// make small calls, which cost more per message.
const IN_FLIGHT_ROWS: [(u64, &str, &str, Option<Goal>); 3] = [
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
struct ClusterRound {
    sample: Sample,
    /// Mean number of keys per script call.
    keys: f64,
}

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let cluster = RedisCluster::start()?;
    let masters: Vec<_> = (0..cluster.len()).map(|node| cluster.node(node)).collect();
    let layer = |config: RedisConfig| {
        let store = env.runtime.block_on(RedisStore::connect(config))?;
        Ok::<_, BoxError>(IdempotencyLayer::new(store, "cluster", key)?)
    };
    let on_three = layer(RedisConfig::cluster(cluster.urls()))?;
    let on_one = layer(RedisConfig::new(env.redis.url()))?;
    // With one bucket, the cluster's calls are as large as those of a single server.
    let single_master = RedisCluster::builder().masters(1).start()?;
    let on_single_master = layer(RedisConfig::cluster(single_master.urls()).with_buckets(1))?;
    let (mut values, mut reference) = (vec![], vec![]);
    let mut first = 0;
    for round in 0..=ROUNDS {
        first += MESSAGES;
        let in_cluster =
            measure(env, &[single_master.node(0)], with_layer(&on_single_master), first, 256)?;
        let alone = measure(env, &[&env.redis], with_layer(&on_one), first, 256)?;
        if round > 0 {
            values.push(per_cpu_second(&in_cluster));
            reference.push(per_cpu_second(&alone));
        }
    }
    let (name, unit) = ("one master with one bucket, 256 at once", "for a CPU s");
    let reference = Some(("one server", reference));
    // The cost of cluster mode for Redis itself.
    report.add(Row { area: "redis", name, unit, values, reference, goal: None });
    drop(single_master);
    for (in_flight, name, keys, goal) in IN_FLIGHT_ROWS {
        let (mut three, mut one) = (vec![], vec![]);
        // The first round is a warm-up and does not count.
        for round in 0..=ROUNDS {
            first += MESSAGES;
            let many = measure(env, &masters, with_layer(&on_three), first, in_flight)?;
            let alone = measure(env, &[&env.redis], with_layer(&on_one), first, in_flight)?;
            if round > 0 {
                three.push(many);
                one.push(alone);
            }
        }
        let mut row = |name, unit, figure: fn(&ClusterRound) -> f64, goal| {
            let of = |rounds: &[ClusterRound]| rounds.iter().map(figure).collect();
            let (values, reference) = (of(&three), Some(("one server", of(&one))));
            report.add(Row { area: "redis", name, unit, values, reference, goal });
        };
        row(name, "for a CPU s", per_cpu_second, goal);
        // The limiting factor: a call covers the keys of a single bucket, and each call has a cost.
        row(keys, "keys", |round| round.keys, None);
        row("our processor time for a message there", "us", |round| round.sample.own_cpu, None);
    }
    Ok(())
}

fn measure(
    env: &Environment,
    servers: &[&RedisServer],
    handler: impl Handler,
    first: u64,
    in_flight: u64,
) -> Result<ClusterRound, BoxError> {
    for server in servers {
        server.cli(&["FLUSHALL"])?;
        server.cli(&["CONFIG", "RESETSTAT"])?;
    }
    let sample = Sample::of(env, servers, handler, first..first + MESSAGES, in_flight)?;
    let calls =
        servers.iter().map(|server| script_stat(server, "calls=")).sum::<Result<f64, _>>()?;
    // Each key is acquired and completed.
    Ok(ClusterRound { sample, keys: 2.0 * MESSAGES as f64 / calls })
}

/// Messages per second of processor time of all servers.
fn per_cpu_second(round: &ClusterRound) -> f64 {
    1e6 / round.sample.redis_cpu
}
