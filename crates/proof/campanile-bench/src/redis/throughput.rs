//! Messages per second, and the cost of each.

use bytes::Bytes;
use campanile::{BoxError, IdempotencyLayer, RedisStore, key, reply};

use super::sample::Sample;
use super::{Environment, ROUNDS, limit, one_by_one};
use crate::handlers::{Handler, key, process, with_layer, with_layer_replying};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 200_000;
const SEQUENTIAL_MESSAGES: u64 = 10_000;

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let store = env.runtime.block_on(RedisStore::connect(env.redis.url()))?;
    let layer = IdempotencyLayer::new(store.clone(), "bench", key)?;
    let by_payload = key::from_fn(key).fingerprint_by(fingerprint);
    let full = IdempotencyLayer::new(store, "full", by_payload)?.with_reply(reply::bytes());
    let reply = Bytes::from(vec![b'r'; 64]);

    let (mut plain, mut whole, mut limits) = (vec![], vec![], vec![]);
    let (mut alone, mut tutorials) = (vec![], vec![]);
    // The first round warms up the connections and Redis's memory, and does not count.
    for round in 0..=ROUNDS {
        let first = round * MESSAGES;
        let product = measure(env, with_layer(&layer), first)?;
        let with_all = measure(env, with_layer_replying(&full, reply.clone()), first)?;
        env.clear()?;
        let one = MESSAGES * (ROUNDS + 1) + round * SEQUENTIAL_MESSAGES;
        let handler = with_layer(&layer);
        let took = env.runtime.block_on(process(handler, one..one + SEQUENTIAL_MESSAGES, 1))?;
        env.clear()?;
        let limit = limit::measure(env)?;
        env.clear()?;
        let tutorial = env.runtime.block_on(one_by_one::per_second(&env.redis.url()))?;
        if round > 0 {
            plain.push(product);
            whole.push(with_all);
            limits.push(limit);
            alone.push(SEQUENTIAL_MESSAGES as f64 / took.as_secs_f64());
            tutorials.push(tutorial);
        }
    }

    let of = |samples: &[Sample], figure: fn(&Sample) -> f64| -> Vec<f64> {
        samples.iter().map(figure).collect()
    };
    let limit = ("the limit by redis-benchmark", limits.iter().map(|l| l.per_second).collect());
    let pool = ("one at a time through a pool", tutorials);
    let mut row = |name, unit, values, reference, goal| {
        report.add(Row { area: "redis", name, unit, values, reference, goal });
    };
    let speed = of(&plain, |m| m.per_second);
    row(
        "layer + RedisStore, 256 at once",
        "messages/s",
        speed.clone(),
        Some(limit.clone()),
        Some(Goal::AtLeast(1.0)),
    );
    row(
        "the same, fingerprint and a reply of 64 bytes",
        "messages/s",
        of(&whole, |m| m.per_second),
        Some(limit),
        Some(Goal::AtLeast(0.85)),
    );
    row(
        "layer + RedisStore, 256 at once",
        "messages/s",
        speed,
        Some(pool.clone()),
        Some(Goal::AtLeast(20.0)),
    );
    row("layer + RedisStore, one at a time", "messages/s", alone, Some(pool), None);
    let cost = ("that of the limit, us", limits.iter().map(|limit| limit.redis_cpu).collect());
    row(
        "Redis's processor time for a message",
        "us",
        of(&plain, |m| m.redis_cpu),
        Some(cost),
        Some(Goal::AtMost(0.95)),
    );
    row("our processor time for a message", "us", of(&plain, |m| m.own_cpu), None, None);
    row("waiting for either, of two cores", "us", of(&plain, waiting_time), None, None);
    Ok(())
}

fn fingerprint(
    message: &campanile::WithLock<crate::handlers::Message>,
    parts: &mut campanile::key::FingerprintHasher,
) {
    parts.update(message.0.to_be_bytes());
}

fn measure(env: &Environment, handler: impl Handler, first: u64) -> Result<Sample, BoxError> {
    env.clear()?;
    Sample::of(env, &[&env.redis], handler, first..first + MESSAGES, 256)
}

/// Time per message spent neither in Redis nor in this process, out of the processor time of two
/// cores.
fn waiting_time(sample: &Sample) -> f64 {
    (2e6 / sample.per_second - sample.redis_cpu - sample.own_cpu).max(0.0)
}
