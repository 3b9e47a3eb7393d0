//! Futures that are dropped while a command of theirs is on its way to the store, however that comes
//! out; and those that only wait. (`dropping` drops the layer's own between its polls.)

mod locks;
mod requests;
mod waits;

use std::time::Duration;

use campanile_test::faults::Fault;
use tokio::time::sleep;

use crate::world::World;

/// When a future is dropped after its beginning, and how long after that a late answer comes. A call
/// is given up by the keeper after five seconds.
const LEAVES: Duration = Duration::from_secs(1);

/// Until then everything has come to its end, and no lock has expired by itself.
const ENDED: Duration = Duration::from_secs(20);

/// What becomes of the command on whose answer the future waits when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Applied before, answered after.
    AnsweredLater,
    /// Applied and answered after.
    AppliedLater,
    /// Applied before, never answered.
    AnswerLost,
    /// Not applied, never answered.
    Lost,
}

const FATES: [Fate; 4] = [Fate::AnsweredLater, Fate::AppliedLater, Fate::AnswerLost, Fate::Lost];

impl Fate {
    /// What the next such command will meet.
    fn awaits(self, world: &World, operation: &str) {
        let fault = match self {
            Self::AnsweredLater => Fault::Slow(LEAVES * 2),
            Self::AppliedLater | Self::Lost => Fault::Hang,
            Self::AnswerLost => Fault::HangReply,
        };
        world.store.forget_calls();
        world.store.next_of(operation, fault);
    }

    /// The future was dropped; this is the rest.
    async fn comes(self, world: &World) {
        sleep(LEAVES).await;
        if self == Self::AppliedLater {
            world.store.release();
        }
        sleep(ENDED).await;
    }
}
