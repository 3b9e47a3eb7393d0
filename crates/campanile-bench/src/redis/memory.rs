//! Total memory of a COMPLETED key in Redis.

use bytes::Bytes;
use campanile::{BoxError, IdempotencyLayer, RedisStore, reply};

use super::Stage;
use crate::guarded::{Handler, guarded, key, process, replying};
use crate::report::{Goal, Report, Row};

const KEYS: u64 = 1_000_000;

pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    let store = stage.runtime.block_on(RedisStore::connect(stage.redis.url()))?;
    // A namespace of nine characters.
    let layer = IdempotencyLayer::new(store, "namespace", key)?;
    let mut row = |name, value, goal| {
        let (values, goal) = (vec![value], Some(Goal::AtMost(goal)));
        report.add(Row { area: "redis", name, unit: "bytes", values, against: None, goal });
    };
    let without = bytes(stage, guarded(&layer))?;
    row("a COMPLETED key without a reply", without, 180.0);
    let layer = layer.with_reply(reply::bytes());
    let with = bytes(stage, replying(&layer, Bytes::from(vec![b'r'; 64])))?;
    row("a COMPLETED key with a reply of 64 bytes", with, 245.0);
    Ok(())
}

/// Measures the memory per key for a million keys, including the tables of keys and expiry times.
fn bytes(stage: &Stage, handler: impl Handler) -> Result<f64, BoxError> {
    stage.clear()?;
    let before = stage.info("memory", "used_memory")?;
    stage.runtime.block_on(process(handler, 0..KEYS, 256))?;
    let after = stage.info("memory", "used_memory")?;
    stage.clear()?;
    Ok((after - before) / KEYS as f64)
}
