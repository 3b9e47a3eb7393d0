//! A member that is stopped at random moments, and its successor.

use std::thread;
use std::time::Duration;

use campanile::store::{Entry, State};

use crate::report::Cause;
use crate::scenario::Scenario;
use crate::{KAFKA, boot_micros, env_or};

/// The drain timeout. Some records take longer.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(300);
/// The promised upper bound beyond the drain timeout if all servers answer: for releasing locks,
/// committing, leaving the group and exiting.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(2);

/// Number of records per shutdown, and records produced per second.
const RECORDS_PER_SHUTDOWN: usize = 500;
const RECORDS_PER_SECOND: usize = 500;

#[test]
fn shutdown_ends_in_time_frees_locks_and_repeats_no_finished_work() {
    let options = ["order=key", "lock_ms=10000", "drain_ms=300", "session.timeout.ms=20000"];
    let mut scenario = Scenario::new("shut down", &KAFKA, &options);
    let shutdowns = env_or("CAMPANILE_REBALANCE_SHUTDOWNS", 8) as usize;
    scenario.start_producing(shutdowns * RECORDS_PER_SHUTDOWN, RECORDS_PER_SECOND, |rng| {
        if rng.u8(..) < 5 { rng.u64(200..500) } else { rng.u64(1..100) }
    });
    let mut took = Vec::new();
    for _ in 0..shutdowns {
        scenario.start_members(1);
        let pause = scenario.rng.u64(..700);
        thread::sleep(Duration::from_millis(pause));
        let (pid, from) = (scenario.members[0].pid(), boot_micros());
        scenario.stop_member(0);
        took.push(Duration::from_micros(boot_micros() - from));
        let entries = scenario.entries();
        let holds = |key: &&String| entries.get(key).map(Entry::state) == Some(State::Processing);
        let held: Vec<_> =
            scenario.history_of(pid).runs.into_keys().filter(|key| holds(&key)).collect();
        scenario.expect(held.is_empty(), || format!("{pid} exited without releasing {held:?}"));
    }
    took.sort();
    let (median, max) = (took[shutdowns / 2], took[shutdowns - 1]);
    println!("shut down: in {median:?} at the median, {max:?} at most of {shutdowns}");
    scenario.expect(max <= DRAIN_TIMEOUT + SHUTDOWN_MARGIN, || format!("a shutdown took {max:?}"));
    scenario.start_member();
    scenario.finish(Cause::Dropped);
}
