//! Wakes tasks when shared state changes, without depending on a runtime.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The wakers of waiting tasks, each in a numbered slot. Slots are reused.
#[derive(Default)]
pub(crate) struct Wakers(Mutex<Vec<Slot>>);

enum Slot {
    Free,
    /// Occupied, but its task has been woken.
    Woken,
    Waiting(Waker),
}

impl Wakers {
    /// Stores the waker in its slot. The first call assigns the slot.
    fn register(&self, index: &mut Option<usize>, waker: &Waker) {
        let mut slots = self.lock();
        let index = *index.get_or_insert_with(|| {
            slots.iter().position(|slot| matches!(slot, Slot::Free)).unwrap_or_else(|| {
                slots.push(Slot::Free);
                slots.len() - 1
            })
        });
        let replaced = match &mut slots[index] {
            Slot::Waiting(old) if old.will_wake(waker) => return,
            slot => std::mem::replace(slot, Slot::Waiting(waker.clone())),
        };
        // Dropping a waker may run arbitrary code, so this happens after the mutex is released.
        drop(slots);
        drop(replaced);
    }

    fn remove(&self, index: usize) {
        let slot = std::mem::replace(&mut self.lock()[index], Slot::Free);
        // After the mutex is released.
        drop(slot);
    }

    /// Wakes all waiting tasks.
    pub(crate) fn wake_all(&self) {
        let woken: Vec<Waker> = self
            .lock()
            .iter_mut()
            .filter_map(|slot| match slot {
                Slot::Waiting(_) => match std::mem::replace(slot, Slot::Woken) {
                    Slot::Waiting(waker) => Some(waker),
                    Slot::Free | Slot::Woken => None,
                },
                Slot::Free | Slot::Woken => None,
            })
            .collect();
        // Waking may run arbitrary code, so this happens after the mutex is released.
        woken.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        // Only a waker's `clone` can panic under the mutex, and that leaves the list intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shared state that tasks can wait on.
pub(crate) trait Watch {
    fn wakers(&self) -> &Wakers;
}

/// A task's registration with shared state. Dropping it frees the slot.
pub(crate) struct Watcher<T: Watch> {
    watched: T,
    slot: Option<usize>,
}

impl<T: Watch> Watcher<T> {
    pub(crate) fn new(watched: T) -> Self {
        Self { watched, slot: None }
    }

    pub(crate) fn get(&self) -> &T {
        &self.watched
    }

    /// Polls `check`. If it has no value, the next change wakes the task.
    pub(crate) fn poll<R>(
        &mut self,
        cx: &Context<'_>,
        check: impl FnOnce(&T) -> Option<R>,
    ) -> Poll<R> {
        // Register the waker before the check, so that no change is missed.
        self.watched.wakers().register(&mut self.slot, cx.waker());
        check(&self.watched).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T: Watch + Clone> Clone for Watcher<T> {
    /// The clone has a slot of its own.
    fn clone(&self) -> Self {
        Self::new(self.watched.clone())
    }
}

impl<T: Watch> Drop for Watcher<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.watched.wakers().remove(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_test::{assert_pending, task};

    use super::*;

    impl Watch for Arc<Wakers> {
        fn wakers(&self) -> &Wakers {
            self
        }
    }

    #[test]
    fn watcher_wakes_the_task_that_has_polled_it_last() {
        let wakers = Arc::new(Wakers::default());
        let mut watcher = Watcher::new(wakers.clone());
        let [mut former, mut last] = [task::spawn(()), task::spawn(())];
        for task in [&mut former, &mut last] {
            task.enter(|cx, _| assert_pending!(watcher.poll(cx, |_| None::<()>)));
        }
        wakers.wake_all();
        assert!(last.is_woken());
        assert!(!former.is_woken());
    }

    #[test]
    fn slot_of_dropped_watcher_is_used_again() {
        let wakers = Arc::new(Wakers::default());
        let mut kept = Watcher::new(wakers.clone());
        let mut task = task::spawn(());
        task.enter(|cx, _| {
            assert_pending!(kept.poll(cx, |_| None::<()>));
            for _ in 0..100 {
                let mut dropped = Watcher::new(wakers.clone());
                assert_pending!(dropped.poll(cx, |_| None::<()>));
                assert_pending!(dropped.poll(cx, |_| None::<()>));
            }
        });
        assert_eq!(wakers.lock().len(), 2);
        wakers.wake_all();
        assert!(task.is_woken());
    }
}
