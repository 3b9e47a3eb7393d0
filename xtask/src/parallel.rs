//! Threads that share work.

use crate::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The number of processors.
pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `job` for each item, on this number of threads, until one fails.
pub(crate) fn in_parallel<T: Sync>(
    threads: usize,
    items: &[T],
    job: impl Fn(&T) -> Result + Sync,
) -> Result {
    let next = AtomicUsize::new(0);
    let error = Mutex::new(None);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(failed) = job(item) {
                next.store(items.len(), Ordering::Relaxed);
                lock(&error).get_or_insert(failed.to_string());
            }
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    into_inner(error).map_or(Ok(()), |error| Err(error.into()))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_ends_the_work() {
        let ran = AtomicUsize::new(0);
        let job = |_: &u8| {
            ran.fetch_add(1, Ordering::Relaxed);
            Err("it failed".into())
        };
        assert_eq!(in_parallel(2, &[0; 1000], job).unwrap_err().to_string(), "it failed");
        assert!(ran.into_inner() < 1000);
        assert!(in_parallel(2, &[1, 2], |_| Ok(())).is_ok());
    }
}
