//! Members that are killed.

use std::thread;

use campanile_test::history::Cause;

use crate::scenario::{RunPhase, Scenario};
use crate::{KAFKA, RECORDS_PER_SECOND, env_or, record_count, worker};

#[test]
fn killed_members_lose_no_record_and_repeat_only_work_in_flight() {
    let mut scenario = Scenario::new("killed", &KAFKA, 4_000, worker::SHORT_SESSION);
    scenario.start_producing(record_count(), RECORDS_PER_SECOND, |rng| rng.u64(10..80));
    scenario.start_members(Scenario::max_members());
    // The other kills come at random moments.
    for phase in [RunPhase::BeforeEffect, RunPhase::EffectUnrecorded] {
        thread::sleep(scenario.random_pause());
        scenario.kill_member_at(phase);
        scenario.start_member();
    }
    for _ in 2..env_or("CAMPANILE_REBALANCE_KILLS", 4) {
        thread::sleep(scenario.random_pause());
        let member = scenario.random_member();
        scenario.kill_member(member);
        scenario.start_member();
    }
    let killed = [Cause::KilledBeforeEffect, Cause::KilledAfterEffect];
    // On a busy machine, a member may miss its session, and then drops its work.
    let mut report = scenario.judge(&[&killed[..], &[Cause::Dropped]].concat());
    let causes = report.verdict.causes();
    for cause in killed {
        report.expect(causes.contains_key(&cause), || format!("no kill was a case of {cause}"));
    }
    scenario.finish(report);
}
