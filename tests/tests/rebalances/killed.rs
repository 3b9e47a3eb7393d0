//! Members that are killed.

use std::thread;

use crate::scene::{Moment, Scene};
use crate::verdict::Cause;
use crate::{KAFKA, RATE, records, setting, worker};

#[test]
fn members_that_are_killed_cost_no_record_and_only_what_they_were_at_runs_again() {
    let options = [&["order=key", "lock_ms=4000"], worker::SOON_MISSED].concat();
    let mut scene = Scene::new("killed", &KAFKA, &options);
    scene.fill(records(), RATE, |rng| rng.u64(10..80));
    scene.start_all(Scene::size());
    // The other kills come at random moments.
    for moment in [Moment::AtWork, Moment::Unrecorded] {
        thread::sleep(scene.pause());
        scene.kill_at(moment);
        scene.start();
    }
    for _ in 2..setting("CAMPANILE_REBALANCE_KILLS", 4) {
        thread::sleep(scene.pause());
        let member = scene.any();
        scene.kill(member);
        scene.start();
    }
    let verdict = scene.end(Cause::Killed);
    assert!(verdict.interrupted > 0, "no kill hit a running handler");
    assert!(verdict.effects_twice > 0, "no kill hit an unrecorded effect");
}
