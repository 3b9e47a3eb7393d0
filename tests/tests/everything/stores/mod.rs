//! The stores of the groups, and their faults.

mod clock;
mod cluster;
mod network;
mod postgres;
mod redis;
mod sentinel;
mod takeovers;

use std::time::Duration;

use campanile_test::history::HistoryRecorder;

pub(crate) use self::cluster::Cluster;
pub(crate) use self::postgres::Postgres;
pub(crate) use self::redis::Redis;
pub(crate) use self::sentinel::Sentinel;
use crate::faults::Injector;

/// How long a fault of a store has an effect after its end: a call or a connection attempt that it has
/// left without an answer ends after the command timeout, and the next one reconnects.
const RECONNECT: Duration = Duration::from_secs(1);

/// The pauses between two faults of a store, in milliseconds.
const PAUSE: std::ops::Range<u64> = 4_000..16_000;

/// How often another fault is drawn if it is not to be injected.
const MAX_DRAWS: usize = 50;

/// A store whose server the campaign can break.
pub(crate) trait Store: Send {
    /// The URL for consumers.
    fn url(&self) -> String;

    /// The URL for the test, without the faults of the network.
    fn direct_url(&self) -> String {
        self.url()
    }

    /// Runs SQL, in Postgres.
    fn query(&self, sql: &str) -> String {
        unreachable!("the store is not Postgres: {sql}")
    }

    /// Records what has happened without the campaign: a busy machine can look like a failure to the
    /// other servers of a store.
    fn record_takeovers(&mut self, _recorder: &HistoryRecorder) {}

    /// Lists what was wrong and the history does not show.
    fn violations(&self) -> &[String] {
        &[]
    }

    /// Injects a random fault, and repairs the store.
    fn inject(&mut self, injector: &mut Injector<'_>);
}

/// Breaks the store again and again until the campaign is over.
pub(crate) fn inject_faults(store: &mut dyn Store, mut injector: Injector<'_>) {
    while injector.pause(PAUSE) {
        store.record_takeovers(&injector.recorders[0]);
        let before = injector.injected;
        store.inject(&mut injector);
        for _ in 0..MAX_DRAWS {
            if !injector.faults.are_restricted() || injector.injected > before {
                break;
            }
            store.inject(&mut injector);
        }
    }
}
