//! A Redis that has its script cache flushed.

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
        let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        let (mut flushes, begun) = (0_u32, now());
        storm.until(0.75, || {
            // Performs all flushes that are due.
            while begun + PACE * flushes <= now() {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
                flushes += 1;
            }
        });
        let took = now() - begun;
        let texts = sent_texts(&mut connection);
        println!("{flushes} flushes in {took:?}; a script's text was sent {texts} times");
        // This thread may have been delayed since its last flush.
        assert!(PACE * flushes * 2 >= took, "{flushes} flushes in {took:?}");
        assert!(texts > 1, "no script was sent again after a flush");
        storm.end_fault();
        storm.end([&redis]);
    });
}

/// Reads how often the server was sent a script that it did not know.
fn sent_texts(connection: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}
