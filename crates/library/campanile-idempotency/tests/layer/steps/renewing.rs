//! Locks that are renewed while the records of their steps wait.

use std::time::Duration;

use campanile_core::{BoxError, LockHandle, Outcome};
use campanile_test::faults::Fault;
use tokio::time::{Instant, sleep};

use super::service;
use crate::harness::{Harness, TTL, TestService, request, run_until_idle};

/// The acquires of other keys, which are answered slowly, keep the record of a step in the queue for
/// longer than its lock lives without a renewal.
#[tokio::test(start_paused = true)]
async fn renewal_overtakes_a_queued_step() {
    const SLOW: Duration = Duration::from_secs(4);
    let harness = Harness::new();
    let handle = async |lock: LockHandle| {
        sleep(Duration::from_secs(1)).await;
        lock.step("charge", async || Ok::<_, BoxError>(())).await
    };
    let start = Instant::now();
    let call = service(&harness.layer(), handle).start(request("p-1"));
    run_until_idle().await;
    harness.store.inject_always_of("acquire", Fault::Slow(SLOW));
    let others = service(&harness.layer(), async |_| Ok(()));
    let others: Vec<_> = (0..3000).map(|n| others.start(request(&format!("o-{n}")))).collect();

    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed(()));
    assert!(start.elapsed() > TTL, "{:?}: the step was recorded at once", start.elapsed());
    for other in others {
        other.await.unwrap().unwrap();
    }
    // A few: none is sent again and again while the step waits.
    assert!((3..10).contains(&harness.store.count("renew")), "{}", harness.store.count("renew"));
}
