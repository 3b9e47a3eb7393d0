//! Total memory of a COMPLETED key in Redis.

use bytes::Bytes;
use campanile::{BoxError, IdempotencyLayer, RedisStore, reply};

use super::Environment;
use crate::handlers::{Handler, key, process, with_layer, with_layer_replying};
use crate::report::{Goal, Report, Row};

const KEYS: u64 = 1_000_000;

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    let store = env.runtime.block_on(RedisStore::connect(env.redis.url()))?;
    // A namespace of nine characters.
    let layer = IdempotencyLayer::new(store, "namespace", key)?;
    let mut row = |name, value, goal| {
        let (values, goal) = (vec![value], Some(Goal::AtMost(goal)));
        report.add(Row { area: "redis", name, unit: "bytes", values, reference: None, goal });
    };
    let without = bytes(env, with_layer(&layer))?;
    row("a COMPLETED key without a reply", without, 180.0);
    let layer = layer.with_reply(reply::bytes());
    let with = bytes(env, with_layer_replying(&layer, Bytes::from(vec![b'r'; 64])))?;
    row("a COMPLETED key with a reply of 64 bytes", with, 245.0);
    Ok(())
}

/// Measures the memory per key for a million keys, including the tables of keys and expiry times.
fn bytes(env: &Environment, handler: impl Handler) -> Result<f64, BoxError> {
    env.clear()?;
    let before = env.info("memory", "used_memory")?;
    env.runtime.block_on(process(handler, 0..KEYS, 256))?;
    let after = env.info("memory", "used_memory")?;
    env.clear()?;
    Ok((after - before) / KEYS as f64)
}
