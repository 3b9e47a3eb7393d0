//! The layer on a real Redis, compared with the limit of Redis: its speed, its cost, and whether
//! both stay constant.

mod cluster;
pub(crate) mod cpu;
mod details;
mod duplicates;
mod latency;
mod limit;
mod many_keys;
mod memory;
mod one_by_one;
mod renewals;
mod sample;
mod throughput;
mod tutorial;

use campanile::BoxError;
use campanile_test::RedisServer;
use tokio::runtime::{Builder, Runtime};

use crate::driver::Options;
use crate::report::Report;

/// Number of interleaved measurements of each comparison.
const ROUNDS: u64 = 5;

type Part = fn(&mut Report, &Environment) -> Result<(), BoxError>;

/// The rows by name.
const PARTS: [(&str, Part); 8] = [
    ("throughput", throughput::run),
    ("latency", latency::run),
    ("duplicates", duplicates::run),
    ("renewals", renewals::run),
    ("details", details::run),
    ("memory", memory::run),
    ("cluster", cluster::run),
    ("many-keys", many_keys::run),
];

pub(crate) fn run(report: &mut Report, options: &Options) -> Result<(), BoxError> {
    let chosen = options.choose(&PARTS)?;
    let env = Environment {
        redis: RedisServer::start()?,
        runtime: Builder::new_multi_thread().worker_threads(1).enable_all().build()?,
    };
    for part in chosen {
        part(report, &env)?;
    }
    Ok(())
}

/// A server without persistence, and a single-threaded runtime: the other core is for Redis.
struct Environment {
    redis: RedisServer,
    runtime: Runtime,
}

impl Environment {
    /// Deletes all keys.
    fn clear(&self) -> Result<(), BoxError> {
        self.redis.cli(&["FLUSHALL"])?;
        Ok(())
    }

    /// Reads a number from the server's `INFO`.
    fn info(&self, section: &str, name: &str) -> Result<f64, BoxError> {
        info(&self.redis, section, name)
    }
}

/// Reads a number from a server's `INFO`.
fn info(server: &RedisServer, section: &str, name: &str) -> Result<f64, BoxError> {
    let info = server.cli(&["INFO", section])?;
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value
        .and_then(|value| value.trim().parse().ok())
        .ok_or_else(|| format!("INFO {section} has no number {name}").into())
}

/// Reads a number from a server's statistics of script calls.
fn script_stat(server: &RedisServer, name: &str) -> Result<f64, BoxError> {
    let info = server.cli(&["INFO", "commandstats"])?;
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let value = line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix(name)));
    Ok(value.and_then(|value| value.parse().ok()).ok_or("no script has run")?)
}
