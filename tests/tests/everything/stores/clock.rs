//! The clock of a server, which libfaketime sets ahead. The server is Valkey, because libfaketime does
//! not work with the allocator of Debian's Redis.

use std::fs;
use std::time::Duration;

use campanile_test::history::FaultKind;
use campanile_test::{RedisServer, RedisServerBuilder, eventually};
use tempfile::TempDir;

use super::RECONNECT;
use crate::faults::Injector;
use crate::{TIMEOUT, faketime};

/// How far the clock of a server is ahead of the machine's.
pub(super) struct ServerClock {
    folder: TempDir,
    ahead: i64,
}

impl ServerClock {
    pub(super) fn new() -> Self {
        let clock = Self { folder: TempDir::new().unwrap(), ahead: 0 };
        clock.write();
        clock
    }

    /// Gives a server this clock.
    pub(super) fn set(&self, builder: RedisServerBuilder) -> RedisServerBuilder {
        let library = faketime::library().expect("`cargo xtask install` installs libfaketime");
        builder
            .valkey()
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", self.folder.path().join("clock"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Steps the clock forward, by less than a lock's time to live or by more.
    pub(super) fn step(&mut self, redis: &RedisServer, injector: &mut Injector<'_>) {
        let seconds = injector.rng.i64(1..9);
        let by = Duration::from_secs(seconds.unsigned_abs());
        let kind = FaultKind::ClockStepped { by: by.as_micros() as i64 };
        injector.inject("clock stepped", &kind, RECONNECT, |_| {
            let time = || redis.cli(&["TIME"]).unwrap();
            let seconds_of = |time: String| time.lines().next().unwrap().parse::<i64>().unwrap();
            let before = seconds_of(time());
            self.ahead += seconds;
            self.write();
            // The server may have read its clock a moment before.
            let has_moved = || (seconds_of(time()) >= before + seconds).then_some(());
            eventually(TIMEOUT, has_moved).expect("the clock moves");
        });
    }

    /// Replaces the file at once: the server reads it whenever it needs the time.
    fn write(&self) {
        let new = self.folder.path().join("new");
        fs::write(&new, format!("{:+}\n", self.ahead)).unwrap();
        fs::rename(new, self.folder.path().join("clock")).unwrap();
    }
}
