//! The maximum throughput of one Redis, measured with its own tool.

use std::process::Command;

use campanile::BoxError;
use campanile_test::RedisServer;

use super::{Environment, cpu};

/// A minimal complete: read, compare the 16 bytes of token and owner, write.
const COMPLETE: &str = "local v = redis.call('GET', KEYS[1]) \
    if v and v:sub(9, 24) == ARGV[1] then return redis.call('SET', KEYS[1], ARGV[2], 'PX', 600000) end \
    return redis.error_reply('not mine')";

/// Number of keys for the completes. All of the keys exist.
const KEYS: u32 = 100_000;

/// Number of times each command is sent.
const REQUESTS: u32 = 300_000;

/// The maximum throughput of Redis.
pub(super) struct Limit {
    /// Messages per second.
    pub(super) per_second: f64,
    /// Processor time of Redis per message, in microseconds.
    pub(super) redis_cpu: f64,
}

/// Measures `SET NX GET PX` of new keys, then an EVALSHA of a minimal complete script, each on its
/// own with pipelines of 64. A message takes as long as one of each in sequence.
pub(super) fn measure(env: &Environment) -> Result<Limit, BoxError> {
    let redis = &env.redis;
    let before = cpu::of_redis(env)?;
    // As long as an entry: 44 bytes, with token and owner at bytes 8 to 24.
    let value = format!("8-bytes.{}{}", "token-and-owner!", "twenty bytes of rest");
    let acquires = benchmark(
        redis,
        // A random key from a range this large is new.
        1_000_000_000,
        &["SET", "key-of-30-bytes--:__rand_int__", &value, "NX", "GET", "PX", "600000"],
    )?;
    let acquired = cpu::of_redis(env)? - before;
    redis.cli(&["FLUSHALL"])?;
    let fill = format!(
        "for i = 0, {} do redis.call('SET', string.format('key-of-30-bytes--:%012d', i), ARGV[1]) end",
        KEYS - 1
    );
    redis.cli(&["EVAL", &fill, "0", &value])?;
    let sha = redis.cli(&["SCRIPT", "LOAD", COMPLETE])?;
    let before = cpu::of_redis(env)?;
    let completes = benchmark(
        redis,
        KEYS,
        &["EVALSHA", sha.trim(), "1", "key-of-30-bytes--:__rand_int__", "token-and-owner!", &value],
    )?;
    let used = acquired + (cpu::of_redis(env)? - before);
    Ok(Limit {
        per_second: 1.0 / (1.0 / acquires + 1.0 / completes),
        redis_cpu: used.as_secs_f64() * 1e6 / f64::from(REQUESTS),
    })
}

fn benchmark(redis: &RedisServer, random: u32, command: &[&str]) -> Result<f64, BoxError> {
    let output = Command::new("redis-benchmark")
        .args(["-p", &redis.port().to_string(), "-n", &REQUESTS.to_string(), "-P", "64", "-q"])
        .args(["-r", &random.to_string()])
        .args(command)
        .output()
        .map_err(|error| format!("redis-benchmark: {error}; `cargo xtask install` installs it"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // The line is "SET …: 312500.00 requests per second, p50=…", after a progress line that is
    // overwritten.
    text.rsplit(['\r', '\n'])
        .find_map(|line| line.split_once(" requests per second"))
        .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok())
        .ok_or_else(|| format!("redis-benchmark printed no figure: {text}").into())
}
