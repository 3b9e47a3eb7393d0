//! Members that are suspended for longer than their locks and sessions last.

use std::thread;

use campanile_test::history::{Cause, How, Rerun};

use crate::progress::{Progress, Run};
use crate::scenario::{RunPhase, Scenario};
use crate::{KAFKA, RECORDS_PER_SECOND, env_or, record_count, worker};

#[test]
fn suspended_members_complete_and_commit_nothing_taken_over() {
    let mut scenario = Scenario::new("suspended", &KAFKA, 6_000, worker::SHORT_SESSION);
    scenario.start_producing(record_count(), RECORDS_PER_SECOND, |rng| rng.u64(50..100));
    scenario.start_members(Scenario::max_members());
    let mut suspended = Vec::new();
    for _ in 0..env_or("CAMPANILE_REBALANCE_STOPS", 1) {
        thread::sleep(scenario.random_pause());
        // An idle member has nothing to lose.
        let member = scenario.pause_member_at(RunPhase::BeforeEffect);
        let name = scenario.members[member].name().to_owned();
        scenario.resume_once(member, |scenario| has_lost_all(&scenario.history.progress(), &name));
        suspended.push(name);
    }
    // A suspended member drops what it has lost when it continues.
    let mut report = scenario.judge(&[Cause::Suspended, Cause::Dropped]);
    let reruns = report.verdict.reruns.clone();
    let was_suspended = |rerun: &Rerun| suspended.contains(&rerun.first.process);
    let taken_over = reruns.iter().any(was_suspended);
    report.expect(taken_over, || "no run was taken over by another member".into());
    for rerun in reruns {
        // On a busy machine, a member may miss its session, and then drops its work.
        let is_explained = rerun.cause == Cause::Dropped || was_suspended(&rerun);
        report.expect(is_explained, || format!("its process was not suspended: {rerun:#?}"));
    }
    scenario.finish(report);
}

fn in_flight<'a>(progress: &'a Progress, process: &str) -> impl Iterator<Item = &'a Run> {
    progress.runs_of(process).filter(|run| !run.is_answered && run.end != Some(How::Dropped))
}

/// Checks whether other members have answered all of the member's runs in flight.
fn has_lost_all(progress: &Progress, process: &str) -> bool {
    in_flight(progress, process).all(|run| progress.is_answered(&run.begin.record))
}
