//! The library of the command `campanile` on real servers: how long it takes, and how much of the
//! servers' time.

mod list;
mod ping;
mod redrive;

use campanile::BoxError;
use campanile_test::{KafkaServer, RedisServer};
use tokio::runtime::{Builder, Runtime};

use crate::report::{Goal, Report, Row};

const NAMESPACE: &str = "billing.payments";

/// Number of measurements of each figure.
const ROUNDS: usize = 3;

/// With `full`, Redis has 10 million entries.
pub(crate) fn run(report: &mut Report, full: bool) -> Result<(), BoxError> {
    let env = Environment {
        // Commands that take longer than a millisecond are logged.
        redis: RedisServer::builder()
            .config("slowlog-log-slower-than", "1000")
            .config("slowlog-max-len", "1000000")
            .start()?,
        kafka: KafkaServer::start()?,
        runtime: Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
    };
    list::run(report, &env, if full { 10_000_000 } else { 1_000_000 })?;
    redrive::run(report, &env)
}

struct Environment {
    redis: RedisServer,
    kafka: KafkaServer,
    runtime: Runtime,
}

fn add(
    report: &mut Report,
    name: &'static str,
    values: Vec<f64>,
    unit: &'static str,
    goal: Option<Goal>,
) {
    report.add(Row { area: "admin", name, unit, values, reference: None, goal });
}
