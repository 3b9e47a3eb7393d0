//! A clock of its own for a server, set with libfaketime. The server is Valkey, because libfaketime does
//! not work with the allocator of Debian's Redis.

use std::fs;

use campanile_test::RedisServerBuilder;
use tempfile::TempDir;

use campanile_programs::faketime;

/// The file from which a server reads how far its clock is ahead of the machine's.
pub(crate) struct ServerClock(TempDir);

impl ServerClock {
    pub(crate) fn new() -> Self {
        let clock = Self(TempDir::new().unwrap());
        clock.set(0);
        clock
    }

    /// Makes a server read this clock.
    pub(crate) fn give_to(&self, builder: RedisServerBuilder) -> RedisServerBuilder {
        let library = faketime::library().expect("`cargo xtask install` installs libfaketime");
        builder
            .valkey()
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", self.0.path().join("clock"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Sets how far the clock is ahead, in seconds. Replaces the file at once, because the server reads it
    /// whenever it needs the time.
    pub(crate) fn set(&self, seconds: i64) {
        let new = self.0.path().join("new");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(new, self.0.path().join("clock")).unwrap();
    }
}
