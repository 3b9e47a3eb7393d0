//! Members that join and leave gracefully.

use std::thread;

use crate::scenario::Scenario;
use crate::{KAFKA, RECORDS_PER_SECOND, record_count};

#[test]
fn member_changes_lose_no_record_and_run_no_key_twice() {
    // The group never has to wait for such a session to expire.
    join_and_leave("come and leave", &["session.timeout.ms=45000", "heartbeat.interval.ms=100"]);
}

#[test]
fn newer_protocol_member_changes_lose_and_repeat_nothing() {
    join_and_leave("come and leave, newer protocol", &["group.protocol=consumer"]);
}

/// Minimum number of joins and leaves.
const MIN_MEMBERSHIP_CHANGES: u32 = 6;

/// At random times, a random member leaves or a new one joins.
fn join_and_leave(name: &str, settings: &[&str]) {
    let mut scenario = Scenario::new(name, &KAFKA, 10_000, settings);
    scenario.start_producing(record_count(), RECORDS_PER_SECOND, |rng| rng.u64(10..80));
    scenario.start_members(Scenario::max_members());
    let mut changes = 0;
    while !scenario.has_produced_all() || changes < MIN_MEMBERSHIP_CHANGES {
        changes += 1;
        thread::sleep(scenario.random_pause());
        let (members, max_members) = (scenario.members.len(), Scenario::max_members());
        if members == max_members || members > max_members / 2 && scenario.rng.bool() {
            let member = scenario.random_member();
            scenario.stop_member(member);
        } else {
            scenario.start_member();
        }
    }
    let report = scenario.judge(&[]);
    scenario.finish(report);
}
