//! A value that tasks wait for.

use std::pin::pin;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// A value that tasks wait for. They wake in the order in which they began to wait, and not in a random
/// order as with `tokio::sync::watch`.
#[derive(Debug)]
pub struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy> Watched<T> {
    /// Creates a value.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// The value.
    pub fn get(&self) -> T {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value, and wakes the tasks that wait.
    pub fn set(&self, value: T) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = value;
        self.changed.notify_waiters();
    }

    /// Waits until the condition holds. Returns the value for which it does.
    pub async fn wait_for(&self, condition: impl Fn(T) -> bool) -> T {
        loop {
            let changed = pin!(self.changed.notified());
            let value = self.get();
            if condition(value) {
                return value;
            }
            changed.await;
        }
    }
}
