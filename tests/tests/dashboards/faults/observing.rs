//! Requests that are only observed.

use std::time::Duration;

use campanile::record::Coordinates;
use campanile::store::{Answer, Command, State, Store, StoreError, StoreKey};
use campanile::{Backoff, IdempotencyKey, LockKeeper, MemoryStore, ObserveLayer, Observer, Runner};
use tokio::sync::oneshot;
use tower::{Layer, ServiceExt, service_fn};

use super::Faults;
use crate::workload::{Does, Job, TIMEOUT, config, job_key};

/// A store that always fails with this error.
#[derive(Clone)]
struct Failing(StoreError);

impl Store for Failing {
    async fn apply(&self, _: Command) -> Result<Answer, StoreError> {
        Err(self.0.clone())
    }
}

fn at(offset: i64) -> Coordinates {
    Coordinates { topic: "payments".into(), partition: 0, offset }
}

impl Faults {
    /// Every verdict, and every origin of a duplicate.
    pub(crate) async fn observed(&self) {
        let verdicts = [
            r#"campanile_observed_requests_total{campanile_observed_verdict="duplicate"}"#,
            r#"campanile_observed_requests_total{campanile_observed_verdict="mismatch"}"#,
            r#"campanile_observed_requests_total{campanile_observed_verdict="unavailable"}"#,
            r#"campanile_observed_requests_total{campanile_observed_verdict="unreadable"}"#,
        ];
        let store = MemoryStore::new();
        let keeper = LockKeeper::new(store.clone()).unwrap();
        let twice = config("observed").with_max_attempts(2);
        let observer = Observer::new(&keeper, twice).unwrap();
        self.wait_until_scraped("campanile_observed_requests_total").await;
        let rise = self.rise(&verdicts);
        // An observer asks the store beside the handler, so an entry may change after a run.
        let wait_for_entry = async |id: &str, state: State, attempt: u16| {
            let key = IdempotencyKey::new(id.to_owned()).unwrap();
            let key = StoreKey::new("observed".try_into().unwrap(), &key);
            let has_changed = || {
                let entry = store.entry(&key);
                entry.is_some_and(|it| (it.state(), it.attempt()) == (state, attempt))
            };
            self.wait_until(has_changed, id).await;
        };
        let succeed = async || Ok::<_, String>(());
        observer.run("a", at(7), succeed).await.unwrap();
        wait_for_entry("a", State::Completed, 1).await;
        for offset in [Some(at(7)), Some(at(8)), None] {
            observer.run("a", offset, succeed).await.unwrap();
        }
        for attempt in 1..=3 {
            observer.run("b", at(9), async || Err::<(), _>("busy")).await.unwrap_err();
            wait_for_entry("b", State::Retrying, attempt).await;
        }
        observer.run("", at(10), succeed).await.unwrap();
        observer.run(Err::<String, _>("no identifier"), at(11), succeed).await.unwrap();

        // Two runs of a key overlap. The first ends after the second has been observed.
        let overlap = self.rise(&[
            r#"campanile_observed_requests_total{campanile_observed_verdict="in_progress"}"#,
        ]);
        let (end, ended) = oneshot::channel::<()>();
        let first = observer.clone();
        let running = tokio::spawn(async move {
            let handle = async || ended.await.map_err(|error| error.to_string());
            first.run("c", at(12), handle).await
        });
        wait_for_entry("c", State::Processing, 1).await;
        observer.run("c", at(13), succeed).await.unwrap();
        self.wait_for(overlap).await;
        end.send(()).unwrap();
        running.await.unwrap().unwrap();

        // A layer that guards has failed before.
        let hour = Duration::from_secs(3600);
        let slow = config("observed").with_backoff(Backoff::new(hour, hour).unwrap());
        let guard = Runner::new(&keeper, slow).unwrap();
        guard.run("d", async |_| Err::<(), _>("busy")).await.unwrap_err();
        observer.run("d", at(14), succeed).await.unwrap();

        let layer = ObserveLayer::new(&keeper, config("observed"), job_key()).unwrap();
        let service = layer.layer(service_fn(async |_| Ok::<_, String>(())));
        for cents in [1, 7] {
            let job = Job::new("e", Does::Succeed).of_cents(cents);
            service.clone().oneshot(job.request()).await.unwrap();
        }
        for error in [StoreError::unavailable("gone"), StoreError::unreadable("garbage")] {
            let observer = Observer::new(Failing(error), config("observed")).unwrap();
            observer.run("g", at(16), succeed).await.unwrap();
        }
        self.wait_for(rise).await;

        let rise = self.rise(&[
            r#"campanile_observed_requests_total{campanile_observed_verdict="not_observed"}"#,
        ]);
        let _ = keeper.shutdown(TIMEOUT).await;
        observer.run("f", at(15), succeed).await.unwrap();
        self.wait_for(rise).await;
    }
}
