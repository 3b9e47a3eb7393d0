//! Futures that are dropped while one of their commands is in flight, whatever becomes of it, and
//! futures that only wait. (`dropping` drops the layer's own future between its polls.)

mod locks;
mod requests;
mod waits;

use std::time::Duration;

use campanile_test::faults::Fault;
use tokio::time::sleep;

use crate::harness::Harness;

/// How long a future runs before it is dropped, and how long after that a late reply arrives. The
/// keeper gives up a call after five seconds.
const DROP_AFTER: Duration = Duration::from_secs(1);

/// After this time everything has settled, and no lock has expired by itself.
const SETTLE_TIME: Duration = Duration::from_secs(20);

/// What happens to the command in flight when the future is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// Applied before the drop, answered after it.
    AnsweredLater,
    /// Applied and answered after the drop.
    AppliedLater,
    /// Applied before the drop, never answered.
    AnswerLost,
    /// Never applied, never answered.
    Lost,
}

const DELIVERIES: [Delivery; 4] =
    [Delivery::AnsweredLater, Delivery::AppliedLater, Delivery::AnswerLost, Delivery::Lost];

impl Delivery {
    /// Injects the fault that the next such command meets.
    fn inject(self, harness: &Harness, operation: &str) {
        let fault = match self {
            Self::AnsweredLater => Fault::Slow(DROP_AFTER * 2),
            Self::AppliedLater | Self::Lost => Fault::Hang,
            Self::AnswerLost => Fault::HangReply,
        };
        harness.store.forget_calls();
        harness.store.inject_next_of(operation, fault);
    }

    /// Completes the delivery after the future has been dropped, and waits until everything
    /// settles.
    async fn finish(self, harness: &Harness) {
        sleep(DROP_AFTER).await;
        if self == Self::AppliedLater {
            harness.store.release();
        }
        sleep(SETTLE_TIME).await;
    }
}
