//! Futures that are dropped while a command of theirs is on its way to the store, however that comes
//! out; and those that only wait. (`dropping` drops the layer's own between its polls.)

mod locks;
mod requests;
mod waits;

use std::time::Duration;

use campanile_test::faults::Fault;
use tokio::time::sleep;

use crate::harness::Harness;

/// When a future is dropped after its beginning, and how long after that a late answer comes. A call
/// is given up by the keeper after five seconds.
const DROP_AFTER: Duration = Duration::from_secs(1);

/// Until then everything has come to its end, and no lock has expired by itself.
const SETTLE_TIME: Duration = Duration::from_secs(20);

/// What becomes of the command on whose answer the future waits when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// Applied before, answered after.
    AnsweredLater,
    /// Applied and answered after.
    AppliedLater,
    /// Applied before, never answered.
    AnswerLost,
    /// Not applied, never answered.
    Lost,
}

const DELIVERIES: [Delivery; 4] =
    [Delivery::AnsweredLater, Delivery::AppliedLater, Delivery::AnswerLost, Delivery::Lost];

impl Delivery {
    /// What the next such command will meet.
    fn inject(self, harness: &Harness, operation: &str) {
        let fault = match self {
            Self::AnsweredLater => Fault::Slow(DROP_AFTER * 2),
            Self::AppliedLater | Self::Lost => Fault::Hang,
            Self::AnswerLost => Fault::HangReply,
        };
        harness.store.forget_calls();
        harness.store.next_of(operation, fault);
    }

    /// The future was dropped; this is the rest.
    async fn finish(self, harness: &Harness) {
        sleep(DROP_AFTER).await;
        if self == Self::AppliedLater {
            harness.store.release();
        }
        sleep(SETTLE_TIME).await;
    }
}
