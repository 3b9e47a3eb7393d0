//! Runs many seeds.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The environment variable that repeats a seed.
pub(super) const SEED: &str = "CAMPANILE_SIMULATION_SEED";

/// Simulates many seeds on all processors, and passes each result to `add`. Returns the seeds, or `None`
/// if one was repeated.
///
/// `CAMPANILE_SIMULATION_CASES` sets the number of seeds of a long run, which begins at a random one,
/// and `CAMPANILE_SIMULATION_SEED` repeats one.
///
/// # Panics
/// Panics if a simulation does, after its seed was printed.
pub fn simulate_seeds<R>(
    cases: u64,
    simulate: impl Fn(u64) -> R + Sync,
    add: impl FnMut(R) + Send,
) -> Option<Range<u64>> {
    let read = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    if let Some(seed) = read(SEED) {
        simulate(seed);
        return None;
    }
    let (first, cases) = match read("CAMPANILE_SIMULATION_CASES") {
        Some(cases) => (fastrand::u64(..1 << 48), cases),
        None => (0, cases),
    };
    println!("{cases} seeds from {first}");
    let seeds = first..first + cases;
    let (next, add) = (AtomicU64::new(first), Mutex::new(add));
    let simulate_next = || {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if !seeds.contains(&seed) {
            return false;
        }
        let result = catch_unwind(AssertUnwindSafe(|| simulate(seed)));
        let result = result.unwrap_or_else(|panic| {
            next.store(seeds.end, Ordering::Relaxed);
            println!("to repeat this case, set {SEED}={seed}");
            resume_unwind(panic)
        });
        (add.lock().unwrap())(result);
        true
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| while simulate_next() {});
        }
    });
    Some(seeds)
}
