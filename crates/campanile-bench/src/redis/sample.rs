//! The speed of processing messages, and the cost of each.

use std::ops::Range;
use std::time::Duration;

use campanile::BoxError;
use campanile_test::RedisServer;

use super::{Stage, cpu};
use crate::guarded::{Handler, process};

/// The measurements of one round.
pub(super) struct Measured {
    pub(super) per_second: f64,
    /// Processor time of all servers per message, in microseconds.
    pub(super) redis: f64,
    /// Processor time of this process per message, in microseconds.
    pub(super) ours: f64,
}

impl Measured {
    /// Processes these messages on these servers, with `at_once` in flight.
    pub(super) fn of(
        stage: &Stage,
        servers: &[&RedisServer],
        handler: impl Handler,
        numbers: Range<u64>,
        at_once: u64,
    ) -> Result<Self, BoxError> {
        let used =
            || servers.iter().map(|server| cpu::of_server(server)).sum::<Result<Duration, _>>();
        let messages = (numbers.end - numbers.start) as f64;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / messages;
        let (redis, ours) = (used()?, cpu::ours()?);
        let took = stage.runtime.block_on(process(handler, numbers, at_once))?;
        Ok(Self {
            per_second: messages / took.as_secs_f64(),
            redis: each(used()? - redis),
            ours: each(cpu::ours()? - ours),
        })
    }
}
