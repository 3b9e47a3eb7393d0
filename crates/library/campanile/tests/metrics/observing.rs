//! The metrics of requests that are only observed.

use std::time::Duration;

use campanile::record::Coordinates;
use campanile::{LockKeeper, MemoryStore, Observer};
use campanile_test::TestClock;
use tokio::time::sleep;

use crate::scrape::{Scrape, recorder};
use crate::table::assert_defined;

#[tokio::test(start_paused = true)]
async fn observed_requests_are_counted_by_verdict_and_origin() {
    let (recorder, clock) = (recorder(), TestClock::new());
    let scrape = Scrape(recorder.handle());
    let store = MemoryStore::with_clock(clock.store_clock());
    let (keeper, task) = LockKeeper::pair(store, clock.keeper_clock());
    drop(tokio::spawn(task));
    let observer =
        metrics::with_local_recorder(&recorder, || Observer::new(&keeper, "payments").unwrap());
    for (key, offset) in [("a", 7), ("a", 7), ("a", 8), ("", 9)] {
        let at = Coordinates { topic: "payments".into(), partition: 0, offset };
        observer.run(key, at, async || Ok::<_, String>(())).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    for (verdict, count) in [("first", 1.0), ("duplicate", 2.0), ("missing_key", 1.0)] {
        let labels = [("campanile_namespace", "payments"), ("campanile_observed_verdict", verdict)];
        scrape.assert("campanile_observed_requests_total", &labels, count);
    }
    for (origin, count, age) in [("redelivery", 1.0, 1.0), ("repeat", 1.0, 2.0)] {
        let labels = [("campanile_observed_duplicate_origin", origin)];
        scrape.assert("campanile_observed_duplicate_age_seconds_count", &labels, count);
        scrape.assert("campanile_observed_duplicate_age_seconds_sum", &labels, age);
    }
    assert_defined(&scrape);
}
