//! Threads that share work.

use crate::Result;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The number of processors.
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `job` for each item, on this number of threads, until one fails. Returns what each call has
/// returned, in the order of the items.
///
/// # Errors
///
/// Fails with the first error of a call.
pub fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    job: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let (results, error) = (Mutex::new(BTreeMap::new()), Mutex::new(None));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return };
            match job(item) {
                Ok(result) => {
                    lock(&results).insert(number, result);
                }
                Err(failed) => {
                    next.store(items.len(), Ordering::Relaxed);
                    lock(&error).get_or_insert(failed.to_string());
                }
            }
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    match into_inner(error) {
        Some(error) => Err(error.into()),
        None => Ok(into_inner(results).into_values().collect()),
    }
}

/// Locks a mutex, also after a panic of another thread.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the value out of a mutex, also after a panic of another thread.
pub fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_ends_the_work() {
        let ran = AtomicUsize::new(0);
        let job = |_: &u8| -> Result {
            ran.fetch_add(1, Ordering::Relaxed);
            Err("it failed".into())
        };
        assert_eq!(in_parallel(2, &[0; 1000], job).unwrap_err().to_string(), "it failed");
        assert!(ran.into_inner() < 1000);
    }

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..1000).collect();
        assert_eq!(in_parallel(4, &items, |item| Ok(*item)).unwrap(), items);
    }
}
