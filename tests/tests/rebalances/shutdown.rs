//! A member that is stopped at random moments, and its successor.

use std::thread;
use std::time::Duration;

use campanile::store::{Entry, State};
use campanile_test::history::Cause;

use crate::scenario::Scenario;
use crate::{KAFKA, env_or};

/// The drain timeout. Some records take longer.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(300);
/// The promised upper bound beyond the drain timeout if all servers answer: for releasing locks,
/// committing, leaving the group and exiting.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(2);
/// How much later a busy machine may end a single shutdown.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// How long a member waits until its locks are released. After that, they expire.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The records produced per second, until the last shutdown.
const RECORDS_PER_SECOND: usize = 500;
/// More records than are produced between two shutdowns.
const RECORDS_PER_SHUTDOWN: usize = 15 * RECORDS_PER_SECOND;

#[test]
fn shutdown_ends_in_time_frees_locks_and_repeats_no_finished_work() {
    let options = ["drain_ms=300", "session.timeout.ms=20000"];
    let mut scenario = Scenario::new("shut down", &KAFKA, 10_000, &options);
    let shutdowns = env_or("CAMPANILE_REBALANCE_SHUTDOWNS", 8) as usize;
    scenario.start_producing(shutdowns * RECORDS_PER_SHUTDOWN, RECORDS_PER_SECOND, |rng| {
        if rng.u8(..) < 5 { rng.u64(200..500) } else { rng.u64(1..100) }
    });
    let (mut took, mut unreleased, mut expiring) = (Vec::new(), Vec::new(), 0);
    for _ in 0..shutdowns {
        scenario.start_members(1);
        let pause = scenario.rng.u64(..700);
        thread::sleep(Duration::from_millis(pause));
        let (name, from) = (scenario.members[0].name().to_owned(), scenario.history.recorder.now());
        scenario.stop_member(0);
        let duration = Duration::from_micros(scenario.history.recorder.now() - from);
        took.push(duration);
        let (entries, progress) = (scenario.entries(), scenario.history.progress());
        let keys = progress.runs_of(&name).map(|run| run.key().to_owned());
        let is_held = |key: &String| entries.get(key).map(Entry::state) == Some(State::Processing);
        let held: Vec<_> = keys.filter(is_held).map(|key| (name.clone(), key)).collect();
        if duration < DRAIN_TIMEOUT + RELEASE_TIMEOUT {
            unreleased.extend(held);
        } else {
            // On a busy machine, Redis may not have answered in time.
            expiring += usize::from(!held.is_empty());
        }
    }
    scenario.stop_producing();
    took.sort();
    let (median, max) = (took[shutdowns / 2], took[shutdowns - 1]);
    println!("shut down: in {median:?} at the median, {max:?} at most of {shutdowns}");
    scenario.start_member();
    let mut report = scenario.judge(&[Cause::Dropped]);
    let bound = DRAIN_TIMEOUT + SHUTDOWN_MARGIN;
    report.expect(median <= bound, || format!("half of the shutdowns took {median:?}"));
    report.expect(max <= bound + MAX_DELAY, || format!("a shutdown took {max:?}"));
    report.expect(expiring <= shutdowns / 2, || format!("{expiring} exits left locks to expire"));
    report.expect(unreleased.is_empty(), || format!("not released by the exit: {unreleased:?}"));
    scenario.finish(report);
}
