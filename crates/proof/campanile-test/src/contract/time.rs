use std::future::Future;
use std::time::Duration;

use crate::TestClock;

/// How time passes for a store.
pub trait Time: Sync {
    /// Lets approximately this much time pass. The suite then reads the store's clock and calls
    /// again if the clock has not advanced far enough.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// For a store with its own clock: sleeps, on tokio's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

impl Time for RealTime {
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }
}

/// For a store that uses this clock: advances the clock.
impl Time for TestClock {
    async fn pass(&self, time: Duration) {
        self.advance(time);
    }
}
