//! The keys whose handlers run in this process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use campanile_core::StoreKey;

/// Counts the handlers that run for each key. A key may still be locked although its handler has ended,
/// because its outcome is being recorded; only this shows that two runs overlap.
#[derive(Debug, Default)]
pub(super) struct RunningKeys(Mutex<HashMap<StoreKey, usize>>);

/// A handler that runs, until it is dropped.
#[derive(Debug)]
pub(super) struct RunningKey {
    keys: Arc<RunningKeys>,
    key: StoreKey,
}

impl RunningKeys {
    /// Adds a handler. Returns whether another one runs for the same key.
    pub(super) fn start(self: &Arc<Self>, key: &StoreKey) -> (RunningKey, bool) {
        let mut keys = self.lock();
        let count = keys.entry(key.clone()).or_default();
        *count += 1;
        (RunningKey { keys: self.clone(), key: key.clone() }, *count > 1)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StoreKey, usize>> {
        // Only this file's code runs under the mutex.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningKey {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.keys.lock().entry(self.key.clone()) {
            match entry.get() {
                0 | 1 => drop(entry.remove()),
                _ => *entry.get_mut() -= 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::IdempotencyKey;

    use super::*;

    #[test]
    fn key_is_forgotten_once_its_last_handler_has_ended() {
        let keys = Arc::<RunningKeys>::default();
        let key = IdempotencyKey::new("p-1".to_owned()).unwrap();
        let key = StoreKey::new("payments".try_into().unwrap(), &key);
        let (first, overlaps) = keys.start(&key);
        assert!(!overlaps);
        let (second, overlaps) = keys.start(&key);
        assert!(overlaps);
        drop(first);
        let (third, overlaps) = keys.start(&key);
        assert!(overlaps);
        drop((second, third));
        assert!(keys.lock().is_empty());
        let (_fourth, overlaps) = keys.start(&key);
        assert!(!overlaps);
    }
}
