//! How fast messages are processed, and what each costs.

use std::ops::Range;
use std::time::Duration;

use campanile::BoxError;
use campanile_test::RedisServer;

use super::{Stage, cpu};
use crate::guarded::{Handler, process};

/// What one round has measured.
pub(super) struct Measured {
    pub(super) per_second: f64,
    /// The processor's time of all servers for a message, in microseconds.
    pub(super) redis: f64,
    /// That of ours.
    pub(super) ours: f64,
}

impl Measured {
    /// Processes these messages, so many at once, on these servers.
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
