//! Dead letters that are brought back, on a real Kafka and a real Redis.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod consumer;
mod filters;
mod outcomes;
mod progress;
mod servers;
mod sharing;
mod support;
mod unreadable;

use std::future::pending;

use campanile_admin::AdminError;
use campanile_admin::redrive::{
    LetterOutcome, LetterReport, Redrive, RedriveObserver, RedriveSummary,
};
use campanile_core::BoxError;

use support::Scene;

/// An observer that keeps the audit.
#[derive(Default)]
struct Audit(Vec<LetterReport>);

impl RedriveObserver for Audit {
    fn handled(&mut self, reports: &[LetterReport]) -> Result<(), BoxError> {
        self.0.extend_from_slice(reports);
        Ok(())
    }
}

impl Audit {
    /// The keys with this outcome, sorted.
    fn keys(&self, outcome: LetterOutcome) -> Vec<&str> {
        let with_outcome = self.0.iter().filter(|report| report.outcome == outcome);
        let mut keys: Vec<_> = with_outcome.filter_map(|report| report.key.as_deref()).collect();
        keys.sort_unstable();
        keys
    }
}

/// Runs to the end.
async fn run(scene: &Scene, redrive: &Redrive) -> Result<(RedriveSummary, Audit), AdminError> {
    let mut audit = Audit::default();
    let summary = redrive.run(&scene.kafka(), &scene.store, &mut audit, pending::<()>()).await?;
    let count = |outcome| audit.0.iter().filter(|report| report.outcome == outcome).count() as u64;
    assert_eq!(summary.reopened, count(LetterOutcome::Reopened));
    assert_eq!(summary.produced, count(LetterOutcome::Produced));
    Ok((summary, audit))
}
