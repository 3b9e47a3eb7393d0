//! Members that are suspended for longer than their locks and sessions last.

use std::thread;
use std::time::Duration;

use campanile_test::eventually;

use crate::history::{History, Run};
use crate::scene::Scene;
use crate::verdict::Cause;
use crate::{KAFKA, RATE, records, setting, worker};

/// How long a member may take to become busy.
const BUSY: Duration = Duration::from_secs(30);

#[test]
fn members_that_stood_still_complete_and_commit_nothing_that_others_have_taken_over() {
    let options = [&["order=key", "lock_ms=3000"], worker::SOON_MISSED].concat();
    let mut scene = Scene::new("stood still", &KAFKA, &options);
    scene.fill(records(), RATE, |rng| rng.u64(50..100));
    scene.start_all(Scene::size());
    for _ in 0..setting("CAMPANILE_REBALANCE_STOPS", 1) {
        thread::sleep(scene.pause());
        let member = scene.any();
        let pid = scene.members[member].pid();
        // An idle member has nothing to lose.
        let busy = || (at_work(&scene.of(pid)).count() > 1).then_some(());
        eventually(BUSY, busy).expect("the member has runs in flight");
        scene.stand_still(member, |scene| {
            let others = scene.history();
            has_lost_all(&scene.of(pid), &others)
        });
    }
    let verdict = scene.end(Cause::Stopped);
    assert!(verdict.twice > 0, "no run was taken over by another member");
}

fn at_work(of: &History) -> impl Iterator<Item = &Run> {
    of.runs.values().flatten().filter(|run| run.over().is_none())
}

/// Checks whether other members have answered all of the member's runs in flight.
fn has_lost_all(of: &History, all: &History) -> bool {
    at_work(of)
        .all(|run| all.answered.get(&run.partition).is_some_and(|of| of.contains_key(&run.offset)))
}
