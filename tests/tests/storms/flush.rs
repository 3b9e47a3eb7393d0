//! A Redis that has its script cache flushed.

use std::time::Duration;

use campanile::lock::Clock;
use campanile_test::RedisServer;

use crate::repeat;
use crate::scenario::{Scenario, with_timeout};

const FLUSH_INTERVAL: Duration = Duration::from_millis(10);

#[test]
fn flushed_scripts_cost_no_record_and_no_attempt() {
    repeat(|seed| {
        let redis = RedisServer::start().unwrap();
        let mut scenario =
            Scenario::start("scripts flushed every 10 ms", seed, || with_timeout(redis.url()));
        scenario.start_fault(0.1, None);
        let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        let now = || Clock::boot().now();
        let (mut flushes, started) = (0_u32, now());
        scenario.repeat_until(0.75, || {
            // Performs all flushes that are due.
            while started + FLUSH_INTERVAL * flushes <= now() {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
                flushes += 1;
            }
        });
        let took = now() - started;
        let script_sends = count_script_sends(&mut connection);
        println!("{flushes} flushes in {took:?}; a script's text was sent {script_sends} times");
        // This thread may have been delayed since its last flush.
        assert!(FLUSH_INTERVAL * flushes * 2 >= took, "{flushes} flushes in {took:?}");
        assert!(script_sends > 1, "no script was sent again after a flush");
        scenario.end_fault();
        scenario.finish([&redis], &[]);
    });
}

/// Reads how often the server was sent a script that it did not know.
fn count_script_sends(connection: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}
