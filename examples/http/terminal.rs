//! A card terminal, in place of a payment provider.

use std::sync::Arc;
use std::time::Duration;

use campanile_examples::Ledger;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Charges cards, one at a time, and records the payments that handlers began. Clones refer to the
/// same terminal.
#[derive(Clone)]
pub(crate) struct Terminal {
    free: Arc<Semaphore>,
    takes: Duration,
    /// The cents of each payment that a handler has begun.
    pub(crate) begun: Ledger<u64>,
}

impl Terminal {
    /// Creates a terminal that takes this long for each payment.
    pub(crate) fn new(takes: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(1)), takes, begun: Ledger::default() }
    }

    /// Waits until the terminal is free. Returns `None` if it is out of order.
    pub(crate) async fn take(&self, cents: u64) -> Option<Turn> {
        self.begun.note(cents);
        let turn = self.turn().await?;
        tokio::time::sleep(self.takes).await;
        Some(turn)
    }

    /// Like `take`, for callers that do not charge a card.
    pub(crate) async fn turn(&self) -> Option<Turn> {
        self.free.clone().acquire_owned().await.map(Turn).ok()
    }

    /// Puts the terminal out of order.
    pub(crate) fn close(&self) {
        self.free.close();
    }
}

/// Exclusive use of the terminal, until it is dropped.
pub(crate) struct Turn(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Turn {
    /// Charges a card. Returns the receipt's number, which is different in each run, or `None` if
    /// the card is declined.
    ///
    /// # Panics
    /// Panics if `cents` is zero: a deliberate bug that shows clients the effect of a panic.
    pub(crate) fn charge(self, cents: u64) -> Option<String> {
        const MOST: u64 = 50_000;
        let number = fastrand::u64(..);
        (cents <= MOST).then(|| format!("{number:016x}-{}", number % cents))
    }
}
