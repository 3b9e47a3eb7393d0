//! A member that is stopped at random moments, and its successor.

use std::thread;
use std::time::Duration;

use campanile::store::{Entry, State};

use crate::scene::Scene;
use crate::verdict::Cause;
use crate::{KAFKA, now, setting};

/// The drain timeout. Some records take longer.
const DRAIN: Duration = Duration::from_millis(300);
/// The promised upper bound beyond the drain timeout if all servers answer: for releasing locks,
/// committing, leaving the group and exiting.
const END: Duration = Duration::from_secs(2);

/// Number of records per shutdown, and records produced per second.
const RECORDS: usize = 500;
const RATE: usize = 500;

#[test]
fn whenever_it_is_shut_down_it_ends_in_time_frees_its_locks_and_repeats_nothing_it_finished() {
    let options = ["order=key", "lock_ms=10000", "drain_ms=300", "session.timeout.ms=20000"];
    let mut scene = Scene::new("shut down", &KAFKA, &options);
    let rounds = setting("CAMPANILE_REBALANCE_SHUTDOWNS", 8) as usize;
    scene.fill(rounds * RECORDS, RATE, |rng| {
        if rng.u8(..) < 5 { rng.u64(200..500) } else { rng.u64(1..100) }
    });
    let mut took = Vec::new();
    for _ in 0..rounds {
        scene.start_all(1);
        let pause = scene.rng.u64(..700);
        thread::sleep(Duration::from_millis(pause));
        let (pid, from) = (scene.members[0].pid(), now());
        scene.stop(0);
        took.push(Duration::from_micros(now() - from));
        let entries = scene.entries();
        let holds = |key: &&String| entries.get(key).map(Entry::state) == Some(State::Processing);
        let held: Vec<_> = scene.of(pid).runs.into_keys().filter(|key| holds(&key)).collect();
        scene.expect(held.is_empty(), || format!("{pid} exited without releasing {held:?}"));
    }
    took.sort();
    let (median, most) = (took[rounds / 2], took[rounds - 1]);
    println!("shut down: in {median:?} at the median, {most:?} at most of {rounds}");
    scene.expect(most <= DRAIN + END, || format!("a shutdown took {most:?}"));
    scene.start();
    scene.end(Cause::LetGo);
}
