//! Who is to be woken; our own, so that the crate needs no runtime.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Wakers in numbered places; a place is taken again after it was given back.
#[derive(Default)]
pub(crate) struct Wakers(Mutex<Vec<Place>>);

enum Place {
    Free,
    /// Taken, and woken already.
    Woken,
    Waiting(Waker),
}

impl Wakers {
    /// Puts the waker into its place, finding one at the first time.
    pub(crate) fn register(&self, slot: &mut Option<usize>, waker: &Waker) {
        let mut places = self.lock();
        let index = *slot.get_or_insert_with(|| {
            places.iter().position(|p| matches!(p, Place::Free)).unwrap_or_else(|| {
                places.push(Place::Free);
                places.len() - 1
            })
        });
        match &mut places[index] {
            Place::Waiting(old) => old.clone_from(waker),
            place => *place = Place::Waiting(waker.clone()),
        }
    }

    pub(crate) fn remove(&self, slot: usize) {
        let place = std::mem::replace(&mut self.lock()[slot], Place::Free);
        // A waker's drop is foreign code: it runs after the mutex was let go.
        drop(place);
    }

    pub(crate) fn wake_all(&self) {
        let woken: Vec<Waker> = self
            .lock()
            .iter_mut()
            .filter_map(|place| match place {
                Place::Waiting(_) => match std::mem::replace(place, Place::Woken) {
                    Place::Waiting(waker) => Some(waker),
                    Place::Free | Place::Woken => None,
                },
                Place::Free | Place::Woken => None,
            })
            .collect();
        // Foreign code again: outside the mutex.
        woken.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        // No code that can panic runs under it, but a waker's `clone`; the list is whole then, too.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
