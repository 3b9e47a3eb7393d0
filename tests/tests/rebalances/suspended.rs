//! Members that are suspended for longer than their locks and sessions last.

use std::thread;
use std::time::Duration;

use campanile_test::eventually;

use crate::history::{History, Run};
use crate::report::Cause;
use crate::scenario::Scenario;
use crate::{KAFKA, RECORDS_PER_SECOND, env_or, record_count, worker};

/// How long a member may take to become busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn suspended_members_complete_and_commit_nothing_taken_over() {
    let options = [&["order=key", "lock_ms=3000"], worker::SHORT_SESSION].concat();
    let mut scenario = Scenario::new("suspended", &KAFKA, &options);
    scenario.start_producing(record_count(), RECORDS_PER_SECOND, |rng| rng.u64(50..100));
    scenario.start_members(Scenario::max_members());
    for _ in 0..env_or("CAMPANILE_REBALANCE_STOPS", 1) {
        thread::sleep(scenario.random_pause());
        let member = scenario.random_member();
        let pid = scenario.members[member].pid();
        // An idle member has nothing to lose.
        let is_busy = || (runs_in_flight(&scenario.history_of(pid)).count() > 1).then_some(());
        eventually(BUSY_TIMEOUT, is_busy).expect("the member has runs in flight");
        scenario.suspend_until(member, |scenario| {
            let others = scenario.history();
            has_lost_all(&scenario.history_of(pid), &others)
        });
    }
    let report = scenario.finish(Cause::Suspended);
    assert!(report.twice > 0, "no run was taken over by another member");
}

fn runs_in_flight(history: &History) -> impl Iterator<Item = &Run> {
    history.runs.values().flatten().filter(|run| run.ended_at().is_none())
}

/// Checks whether other members have answered all of the member's runs in flight.
fn has_lost_all(member: &History, all: &History) -> bool {
    runs_in_flight(member).all(|run| {
        all.answered.get(&run.partition).is_some_and(|answered| answered.contains_key(&run.offset))
    })
}
