//! The speed of processing messages, and the cost of each.

use std::ops::Range;
use std::time::Duration;

use campanile::BoxError;
use campanile_test::RedisServer;

use super::{Environment, cpu};
use crate::handlers::{Handler, process};

/// The measurements of one round.
pub(super) struct Sample {
    pub(super) per_second: f64,
    /// Processor time of all servers per message, in microseconds.
    pub(super) redis_cpu: f64,
    /// Processor time of this process per message, in microseconds.
    pub(super) own_cpu: f64,
}

impl Sample {
    /// Processes these messages on these servers, with `in_flight` in flight.
    pub(super) fn of(
        env: &Environment,
        servers: &[&RedisServer],
        handler: impl Handler,
        numbers: Range<u64>,
        in_flight: u64,
    ) -> Result<Self, BoxError> {
        let used =
            || servers.iter().map(|server| cpu::of_server(server)).sum::<Result<Duration, _>>();
        let messages = (numbers.end - numbers.start) as f64;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / messages;
        let (redis_cpu, own_cpu) = (used()?, cpu::of_process());
        let took = env.runtime.block_on(process(handler, numbers, in_flight))?;
        // First, because reading that of Redis takes some.
        let own_cpu = cpu::of_process() - own_cpu;
        Ok(Self {
            per_second: messages / took.as_secs_f64(),
            redis_cpu: each(used()? - redis_cpu),
            own_cpu: each(own_cpu),
        })
    }
}
