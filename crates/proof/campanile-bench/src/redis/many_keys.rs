//! Whether the cost stays the same with many keys.

use campanile::{BoxError, IdempotencyLayer, RedisStore};
use campanile_test::RedisServer;

use super::sample::Sample;
use super::{Environment, ROUNDS};
use crate::handlers::{key, with_layer};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 200_000;
const PRESENT_KEYS: u64 = 10_000_000;

/// Entries as long as those of a COMPLETED key without a reply, under keys of the same length.
const FILL: &str = "for i = ARGV[1], ARGV[2] do \
    redis.call('SET', string.format('{filled-0:00}%016d', i), string.rep('x', 44), 'PX', 604800000) \
    end";

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    // A separate server, so that both can be measured in turns.
    let filled = RedisServer::start()?;
    const CHUNK: u64 = 100_000;
    for first in (0..PRESENT_KEYS).step_by(CHUNK as usize) {
        let (first, last) = (first.to_string(), (first + CHUNK - 1).to_string());
        filled.cli(&["EVAL", FILL, "0", &first, &last])?;
    }
    let layer = |server: &RedisServer| {
        let store = env.runtime.block_on(RedisStore::connect(server.url()))?;
        Ok::<_, BoxError>(IdempotencyLayer::new(store, "flat", key)?)
    };
    let (on_empty, on_filled) = (layer(&env.redis)?, layer(&filled)?);
    let (mut empty, mut full) = (vec![], vec![]);
    // The first round is a warm-up and does not count.
    for round in 0..=ROUNDS {
        let numbers = round * MESSAGES..(round + 1) * MESSAGES;
        env.clear()?;
        let handler = with_layer(&on_empty);
        let without = Sample::of(env, &[&env.redis], handler, numbers.clone(), 256)?;
        let with = Sample::of(env, &[&filled], with_layer(&on_filled), numbers, 256)?;
        if round > 0 {
            empty.push(without);
            full.push(with);
        }
    }
    env.clear()?;
    let mut row = |name, unit, figure: fn(&Sample) -> f64, goal| {
        let of = |samples: &[Sample]| samples.iter().map(figure).collect();
        let (values, reference) = (of(&full), Some(("with none", of(&empty))));
        report.add(Row { area: "redis", name, unit, values, reference, goal });
    };
    let name = "256 at once, with 10 million keys present";
    row(name, "messages/s", |m| m.per_second, Some(Goal::AtLeast(0.95)));
    // What limits the speed, if anything: the processor time of Redis, and ours.
    row("Redis's processor time for one of them", "us", |m| m.redis_cpu, None);
    row("our processor time for one of them", "us", |m| m.own_cpu, None);
    Ok(())
}
