use std::future::Future;
use std::time::Duration;

use crate::TestClock;

/// How the time of a store passes.
pub trait Time: Sync {
    /// Lets about so much pass. The suite looks at the store's clock afterwards, and asks for more if
    /// that has not gone on as far.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// For a store with a clock of its own: waits, by tokio's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

impl Time for RealTime {
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }
}

/// For a store whose clock is this one: puts it forward.
impl Time for TestClock {
    async fn pass(&self, time: Duration) {
        self.put_forward(time);
    }
}
