//! When the keeper wakes by itself.

use std::pin::Pin;
use std::time::Duration;

use campanile_core::Clock;
use tokio::time::{Instant, Sleep, sleep};

/// One timer of the runtime, which is set anew only for an earlier time, or once it has gone off: the
/// keeper's next time moves with every call and every lock, and each setting costs about as much as a
/// call of the system. So it may go off early.
pub(super) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    /// By the keeper's clock.
    at: Duration,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { sleep: None, at: Duration::MAX }
    }

    /// Ends at this time or before; never, if there is none.
    pub(super) async fn wait(&mut self, until: Option<Duration>, clock: &Clock) {
        let Some(until) = until else {
            return std::future::pending().await;
        };
        if until < self.at {
            let left = until.saturating_sub(clock.now());
            self.at = until;
            match &mut self.sleep {
                Some(sleep) => sleep.as_mut().reset(Instant::now() + left),
                None => self.sleep = Some(Box::pin(sleep(left))),
            }
        }
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().await;
            self.at = Duration::MAX;
        }
    }
}
