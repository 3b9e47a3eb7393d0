//! Whether the cost stays the same when there are many keys.

use campanile::{BoxError, IdempotencyLayer, RedisStore};

use super::{ROUNDS, Stage};
use crate::guarded::{guarded, key, process};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 200_000;
const PRESENT: u64 = 10_000_000;

/// Entries as a COMPLETED key without a reply has them, under keys of their length.
const FILL: &str = "for i = ARGV[1], ARGV[2] do \
    redis.call('SET', string.format('{filled-0:00}%016d', i), string.rep('x', 44), 'PX', 604800000) \
    end";

pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    let store = stage.runtime.block_on(RedisStore::connect(stage.redis.url()))?;
    let layer = IdempotencyLayer::new(store, "flat", key)?;
    let measure = |round: u64| {
        let first = round * MESSAGES;
        let took =
            stage.runtime.block_on(process(guarded(&layer), first..first + MESSAGES, 256))?;
        Ok::<_, BoxError>(MESSAGES as f64 / took.as_secs_f64())
    };
    let (mut empty, mut full) = (vec![], vec![]);
    // The first is not counted.
    for round in 0..=ROUNDS {
        stage.clear()?;
        let speed = measure(round)?;
        if round > 0 {
            empty.push(speed);
        }
    }
    stage.clear()?;
    const CHUNK: u64 = 100_000;
    for first in (0..PRESENT).step_by(CHUNK as usize) {
        let (first, last) = (first.to_string(), (first + CHUNK - 1).to_string());
        stage.redis.cli(&["EVAL", FILL, "0", &first, &last])?;
    }
    for round in 0..=ROUNDS {
        let speed = measure(ROUNDS + 1 + round)?;
        if round > 0 {
            full.push(speed);
        }
    }
    report.add(Row {
        area: "redis",
        name: "256 at once, with 10 million keys present",
        unit: "messages/s",
        values: full,
        against: Some(("with none", empty)),
        goal: Some(Goal::AtLeast(0.95)),
    });
    Ok(())
}
