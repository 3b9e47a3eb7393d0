//! A Redis that forgets its scripts.

use std::thread;
use std::time::Duration;

use campanile_test::RedisServer;

use crate::ledger::now;
use crate::rounds;
use crate::storm::{Storm, timed};
use crate::verdict::Cause;

const PACE: Duration = Duration::from_millis(10);

#[test]
fn scripts_that_are_flushed_every_ten_milliseconds_cost_no_record_and_no_attempt() {
    rounds(|seed| {
        let redis = RedisServer::start().unwrap();
        let mut storm = Storm::begin("scripts flushed every 10 ms", seed, || timed(redis.url()));
        storm.begin_fault(0.1, Cause::None);
        let (mut flushes, mut next) = (0, now());
        storm.until(0.75, || {
            redis.cli(&["SCRIPT", "FLUSH"]).unwrap();
            flushes += 1;
            next += PACE;
            thread::sleep(next.saturating_sub(now()));
        });
        println!("{flushes} flushes");
        assert!(flushes > 1);
        storm.end_fault();
        storm.end([&redis]);
    });
}
