//! What charges cards, in the place of a payment provider.

use std::sync::Arc;
use std::time::Duration;

use campanile_examples::Ledger;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Charges cards, one at a time, and tells what it was begun with. Clones are the same terminal.
#[derive(Clone)]
pub(crate) struct Terminal {
    free: Arc<Semaphore>,
    takes: Duration,
    /// The cents of each payment that a handler has begun with.
    pub(crate) begun: Ledger<u64>,
}

impl Terminal {
    /// A terminal that takes so long for each payment.
    pub(crate) fn new(takes: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(1)), takes, begun: Ledger::default() }
    }

    /// Waits until it is free. `None`: it is out of order.
    pub(crate) async fn take(&self, cents: u64) -> Option<Turn> {
        self.begun.note(cents);
        let turn = self.turn().await?;
        tokio::time::sleep(self.takes).await;
        Some(turn)
    }

    /// The same for somebody who charges nothing.
    pub(crate) async fn turn(&self) -> Option<Turn> {
        self.free.clone().acquire_owned().await.map(Turn).ok()
    }

    /// Puts it out of order.
    pub(crate) fn close(&self) {
        self.free.close();
    }
}

/// Who has it, until this is dropped.
pub(crate) struct Turn(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Turn {
    /// The receipt's number, which no second run has. `None`: the card is declined.
    ///
    /// # Panics
    /// If nothing is to be charged: a bug, for the clients to see what becomes of a panic.
    pub(crate) fn charge(self, cents: u64) -> Option<String> {
        const MOST: u64 = 50_000;
        let number = fastrand::u64(..);
        (cents <= MOST).then(|| format!("{number:016x}-{}", number % cents))
    }
}
