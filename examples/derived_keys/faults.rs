//! Random faults. They depend on nothing but the seed, the payment and a number, so that two runs with
//! one seed have the same faults.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tokio::sync::Notify;

#[derive(Clone, Copy)]
pub(crate) struct Faults {
    seed: u64,
}

/// Where a handler is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    BeforeCall,
    AfterCall,
}

/// What happens to a call at the provider.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallFault {
    Refused,
    KilledBeforeCharge,
    KilledAfterCharge,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    pub(crate) fn seed(self) -> u64 {
        self.seed
    }

    /// Decides whether the handler of this attempt is killed: every fourth one.
    pub(crate) fn of_attempt(self, payment: &str, attempt: u32) -> Option<Kill> {
        match self.draw("attempt", payment, attempt) {
            0 => Some(Kill::BeforeCall),
            1 => Some(Kill::AfterCall),
            _ => None,
        }
    }

    /// Decides what happens to this call for a payment: a fault in three of eight.
    pub(crate) fn of_call(self, payment: &str, call: u32) -> Option<CallFault> {
        match self.draw("call", payment, call) {
            0 => Some(CallFault::Refused),
            1 => Some(CallFault::KilledBeforeCharge),
            2 => Some(CallFault::KilledAfterCharge),
            _ => None,
        }
    }

    /// Draws a number below 8.
    fn draw(self, what: &str, payment: &str, number: u32) -> u8 {
        let mut hasher = DefaultHasher::new();
        (self.seed, what, payment, number).hash(&mut hasher);
        fastrand::Rng::with_seed(hasher.finish()).u8(..8)
    }
}

/// The process of a handler. Clones refer to the same process.
#[derive(Clone, Default)]
pub(crate) struct Process(Arc<Notify>);

impl Process {
    /// Kills the process. Never completes.
    pub(crate) async fn kill(&self) {
        self.0.notify_one();
        std::future::pending().await
    }

    /// Completes when the process is killed.
    pub(crate) async fn killed(&self) {
        self.0.notified().await;
    }
}
