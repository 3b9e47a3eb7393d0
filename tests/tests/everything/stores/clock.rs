//! The clock of a server, which the campaign sets.

use campanile_test::history::FaultKind;
use campanile_test::{RedisServer, RedisServerBuilder, eventually};

use super::RECONNECT;
use crate::TIMEOUT;
use crate::faults::Injector;
use crate::server_clock::ServerClock;

/// A clock, and how far it is ahead of the machine's, in seconds.
pub(super) struct SteppedClock {
    clock: ServerClock,
    ahead: i64,
}

impl SteppedClock {
    pub(super) fn new() -> Self {
        Self { clock: ServerClock::new(), ahead: 0 }
    }

    /// Gives a server this clock.
    pub(super) fn give_to(&self, builder: RedisServerBuilder) -> RedisServerBuilder {
        self.clock.give_to(builder)
    }

    /// Steps the clock forward, by less than a lock's time to live or by more, or back.
    pub(super) fn step(&mut self, redis: &RedisServer, injector: &mut Injector<'_>) {
        let seconds = random_step(injector);
        let kind = FaultKind::ClockStepped { by: seconds * 1_000_000 };
        injector.inject("clock stepped", &kind, RECONNECT, |_| {
            let time = || redis.cli(&["TIME"]).unwrap();
            let seconds_of = |time: String| time.lines().next().unwrap().parse::<i64>().unwrap();
            let before = seconds_of(time());
            self.ahead += seconds;
            self.clock.set(self.ahead);
            // The server may have read its clock a moment before.
            let has_moved = || {
                let now = seconds_of(time());
                (if seconds > 0 { now >= before + seconds } else { now < before }).then_some(())
            };
            eventually(TIMEOUT, has_moved).expect("the clock moves");
        });
    }
}

/// By how many seconds a clock is stepped: mostly forward, by less than a lock's time to live or by more.
pub(super) fn random_step(injector: &mut Injector<'_>) -> i64 {
    match injector.rng.u8(..4) {
        0 => -injector.rng.i64(1..9),
        _ => injector.rng.i64(1..9),
    }
}
