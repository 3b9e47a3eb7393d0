//! Faults of single requests under the layer.

use std::time::Duration;

use campanile::policy::{OnDropped, OnExhausted, OnMissingKey};
use campanile::{Backoff, IdempotencyLayer};
use tokio::time::timeout;

use super::{Faults, SHORT};
use crate::workload::{Does, Job, TIMEOUT, TestService, config, job_key, run_job, service};

impl Faults {
    /// The answers of the layer that are rare behind a consumer.
    pub(crate) async fn answers(&self) {
        let rise = self.rise(&[
            r#"campanile_requests_total{campanile_request_outcome="mismatch"}"#,
            r#"campanile_requests_total{campanile_request_outcome="invalid_key"}"#,
            r#"campanile_requests_total{campanile_request_outcome="exhausted"}"#,
        ]);
        let keeper = self.keeper().await;
        let call =
            async |service: &TestService, job: Job| run_job(service.clone(), job.request()).await;
        let strict = self.service(&keeper, "direct");
        call(&strict, Job::new("a", Does::Succeed)).await.unwrap();
        call(&strict, Job::new("a", Does::Succeed).of_cents(7)).await.unwrap_err();
        call(&strict, Job::new("?", Does::Succeed)).await.unwrap_err();
        call(&strict, Job::new("", Does::Succeed)).await.unwrap_err();
        let layer = IdempotencyLayer::new(&keeper, config("direct"), job_key()).unwrap();
        let lenient = service(layer.on_missing_key(OnMissingKey::PassThrough), &self.gate);
        call(&lenient, Job::new("", Does::Succeed)).await.unwrap();
        call(&lenient, Job::new("", Does::FailOnce)).await.unwrap_err();

        // The error that has the lock of a last attempt is dropped, as if the process had died.
        let hour = Duration::from_secs(3600);
        let slow = config("direct").with_backoff(Backoff::new(hour, hour).unwrap());
        let layer = IdempotencyLayer::new(&keeper, slow, job_key()).unwrap();
        let backs_off = service(layer.on_exhausted(OnExhausted::GiveUp), &self.gate);
        call(&backs_off, Job::new("b", Does::FailOnce)).await.unwrap_err();
        call(&backs_off, Job::new("b", Does::Succeed)).await.unwrap_err();
        call(&backs_off, Job::new("c", Does::FailForever)).await.unwrap();

        // A process dies in the only attempt.
        let once = config("direct").with_max_attempts(1).with_lock_ttl(SHORT);
        let layer = IdempotencyLayer::new(&keeper, once, job_key()).unwrap();
        let dies = service(layer.on_dropped(OnDropped::Expire), &self.gate);
        let running = tokio::spawn(run_job(dies.clone(), Job::new("d", Does::Hold).request()));
        self.gate.wait_until_held(1).await;
        running.abort();
        running.await.unwrap_err();
        let exhausted =
            self.rise(&[r#"campanile_requests_total{campanile_request_outcome="exhausted"}"#]);
        let mut waiting = std::pin::pin!(self.wait_for(exhausted));
        while timeout(Duration::from_millis(100), &mut waiting).await.is_err() {
            call(&dies, Job::new("d", Does::Succeed)).await.unwrap_err();
        }
        let _ = keeper.shutdown(TIMEOUT).await;
        call(&strict, Job::new("e", Does::Succeed)).await.unwrap_err();
        self.wait_for(rise).await;
    }

    pub(crate) async fn lost_locks(&self) {
        let rise = self.rise(&[
            r#"campanile_locks_lost_total{campanile_lock_loss_cause="max_hold"}"#,
            r#"campanile_store_call_duration_seconds_count{campanile_store_operation="renew"}"#,
        ]);
        let keeper = self.keeper().await;
        let held = config("direct").with_lock_ttl(SHORT).with_max_hold(SHORT / 2);
        let layer = IdempotencyLayer::new(&keeper, held, job_key()).unwrap();
        let too_long = service(layer, &self.gate);
        run_job(too_long, Job::new("max-hold", Does::Hang).request()).await.unwrap_err();

        let short = config("superseded").with_lock_ttl(SHORT);
        let layer = IdempotencyLayer::new(&keeper, short, job_key()).unwrap();
        let superseded = service(layer, &self.gate);
        let running = tokio::spawn(run_job(superseded, Job::new("g", Does::Hold).request()));
        self.gate.wait_until_held(1).await;
        self.delete_entries("superseded");
        running.await.unwrap().unwrap_err();
        self.wait_for(rise).await;
    }
}
