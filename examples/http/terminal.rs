//! A card terminal, in place of a payment provider.

use std::sync::Arc;
use std::time::Duration;

use campanile_examples::EventLog;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Charges cards, one at a time, and records the payments that handlers began. Clones refer to the
/// same terminal.
#[derive(Clone)]
pub(crate) struct Terminal {
    semaphore: Arc<Semaphore>,
    payment_time: Duration,
    /// The cents of each payment that a handler has begun.
    pub(crate) begun: EventLog<u64>,
}

impl Terminal {
    /// Creates a terminal that takes this long for each payment.
    pub(crate) fn new(payment_time: Duration) -> Self {
        Self { semaphore: Arc::new(Semaphore::new(1)), payment_time, begun: EventLog::default() }
    }

    /// Waits until the terminal is free. Returns `None` if it is out of order.
    pub(crate) async fn begin_payment(&self, cents: u64) -> Option<Permit> {
        self.begun.push(cents);
        let permit = self.acquire().await?;
        tokio::time::sleep(self.payment_time).await;
        Some(permit)
    }

    /// Like `begin_payment`, for callers that do not charge a card.
    pub(crate) async fn acquire(&self) -> Option<Permit> {
        self.semaphore.clone().acquire_owned().await.map(Permit).ok()
    }

    /// Puts the terminal out of order.
    pub(crate) fn close(&self) {
        self.semaphore.close();
    }
}

/// Exclusive use of the terminal, until it is dropped.
pub(crate) struct Permit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Permit {
    /// Charges a card. Returns the receipt's number, which is different in each run, or `None` if
    /// the card is declined.
    ///
    /// # Panics
    /// Panics if `cents` is zero: a deliberate bug that shows clients the effect of a panic.
    pub(crate) fn charge(self, cents: u64) -> Option<String> {
        const MAX_CENTS: u64 = 50_000;
        let number = fastrand::u64(..);
        (cents <= MAX_CENTS).then(|| format!("{number:016x}-{}", number % cents))
    }
}
