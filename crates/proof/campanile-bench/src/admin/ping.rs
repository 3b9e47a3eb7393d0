//! How long other clients of Redis wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use campanile::BoxError;
use campanile::lock::Clock;
use campanile_test::RedisServer;

/// The time between two requests.
const INTERVAL: Duration = Duration::from_millis(1);

/// A client that sends a `PING` every millisecond.
pub(super) struct Pings {
    stop: Arc<AtomicBool>,
    client: JoinHandle<redis::RedisResult<Vec<Duration>>>,
}

impl Pings {
    pub(super) fn start(redis: &RedisServer) -> Result<Self, BoxError> {
        let mut connection = redis::Client::open(redis.url())?.get_connection()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let client = thread::spawn(move || {
            let (clock, mut latencies) = (Clock::boot(), Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let start = clock.now();
                () = redis::cmd("PING").query(&mut connection)?;
                latencies.push(clock.now() - start);
                thread::sleep(INTERVAL);
            }
            Ok(latencies)
        });
        Ok(Self { stop, client })
    }

    /// Stops the client, and returns the 99th percentile in microseconds.
    pub(super) fn finish(self) -> Result<f64, BoxError> {
        self.stop.store(true, Ordering::Relaxed);
        let mut latencies = self.client.join().map_err(|_| "the client has panicked")??;
        latencies.sort_unstable();
        let latency = latencies.get(latencies.len() * 99 / 100).ok_or("no PING was sent")?;
        Ok(latency.as_secs_f64() * 1e6)
    }
}
