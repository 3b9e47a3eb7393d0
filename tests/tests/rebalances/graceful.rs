//! Members that join and leave gracefully.

use std::thread;

use crate::scene::Scene;
use crate::verdict::Cause;
use crate::{KAFKA, RATE, records};

#[test]
fn members_that_come_and_leave_cost_no_record_and_run_no_key_twice() {
    // The group never has to wait for such a session to expire.
    storm("come and leave", &["session.timeout.ms=45000", "heartbeat.interval.ms=100"]);
}

#[test]
fn members_that_come_and_leave_in_the_newer_protocol_cost_no_record_and_run_no_key_twice() {
    storm("come and leave, newer protocol", &["group.protocol=consumer"]);
}

/// Minimum number of joins and leaves.
const MOVES: u32 = 6;

/// At random times, a random member leaves or a new one joins.
fn storm(name: &str, settings: &[&str]) {
    let options = [&["order=key", "lock_ms=10000"], settings].concat();
    let mut scene = Scene::new(name, &KAFKA, &options);
    scene.fill(records(), RATE, |rng| rng.u64(10..80));
    scene.start_all(Scene::size());
    let mut moves = 0;
    while !scene.is_filled() || moves < MOVES {
        moves += 1;
        thread::sleep(scene.pause());
        let (members, most) = (scene.members.len(), Scene::size());
        if members == most || members > most / 2 && scene.rng.bool() {
            let member = scene.any();
            scene.stop(member);
        } else {
            scene.start();
        }
    }
    scene.end(Cause::None);
}
