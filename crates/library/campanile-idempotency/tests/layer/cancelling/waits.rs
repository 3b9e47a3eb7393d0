//! Futures that only wait: for the holder of a key, the loss of a lock, or the shutdown of the
//! keeper.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use campanile_core::{LostCause, Outcome, State};
use campanile_idempotency::{IdempotencyError, WaitForLock};
use campanile_test::faults::Fault;
use tokio::time::{sleep, timeout};
use tower::{ServiceBuilder, ServiceExt};
use tower_test::mock;

use super::{DELIVERIES, DROP_AFTER};
use crate::harness::{
    HOUR, Harness, MockHandle, MockHandler, TTL, TestService, failing_service, is_pending,
    layer_error, lock, request, run_until_idle,
};

/// Polls once, and checks whether the future is ready.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// What a retry around the layer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// A holder in this process.
    SameProcess,
    /// A holder in another process.
    OtherProcess,
    /// The backoff after a failed attempt.
    Backoff,
}

#[tokio::test(start_paused = true)]
async fn outer_retry_dropped_while_waiting_writes_nothing() {
    for holder_kind in [Holder::SameProcess, Holder::OtherProcess, Holder::Backoff] {
        let harness = Harness::new();
        let other_process = harness.other_process();
        let holder = if holder_kind == Holder::OtherProcess { &other_process } else { &harness };
        let (held, mut handle) = holder.mock_service(holder.layer());
        let mut call_and_respond = None;
        if holder_kind == Holder::Backoff {
            failing_service(&harness.layer(), || "gateway busy".into())
                .run("p-1")
                .await
                .unwrap_err();
        } else {
            let call = held.start(request("p-1"));
            let (_, respond) = handle.next_request().await.unwrap();
            call_and_respond = Some((call, respond));
        }
        let (handler, _handle): (MockHandler, MockHandle) = mock::pair();
        let service = ServiceBuilder::new()
            .retry(WaitForLock::new(HOUR))
            .layer(harness.layer())
            .concurrency_limit(1)
            .service(handler);
        let before = harness.entry("p-1");
        let waited = timeout(Duration::from_millis(1), service.clone().oneshot(request("p-1")));
        assert!(waited.await.is_err(), "{holder_kind:?}: did not wait");
        run_until_idle().await;
        assert_eq!(harness.entry("p-1"), before, "{holder_kind:?}");
        // The drop has no later effect either, and the permit is released.
        harness.store.forget_calls();
        if let Some((call, respond)) = call_and_respond {
            respond.send_response("done");
            assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"), "{holder_kind:?}");
            let result = timeout(DROP_AFTER, service.oneshot(request("p-1"))).await.unwrap();
            assert!(result.unwrap().is_duplicate(), "{holder_kind:?}");
        }
        assert_eq!(
            harness.store.count("cancel") + harness.store.count("release"),
            0,
            "{holder_kind:?}"
        );
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_signals_do_not_affect_other_waiters() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let holder = service.start(request("p-1"));
    let (held, respond) = handle.next_request().await.unwrap();
    let result = service.run("p-1").await;
    let IdempotencyError::Locked { settled: Some(settled), .. } = layer_error(&result) else {
        panic!("{result:?}");
    };
    harness.store.forget_calls();
    let lock = lock(&held);
    for polled in [false, true] {
        let (mut settles, mut lost) = (pin!(settled.clone()), pin!(lock.lost()));
        if polled {
            assert!(!poll_once(settles.as_mut()).await && !poll_once(lost.as_mut()).await);
        }
    }
    let mut lost = pin!(lock.lost());
    assert!(!poll_once(lost.as_mut()).await);
    assert_eq!(harness.store.calls().len(), 0, "waiting makes no store calls");
    assert!(is_pending(&holder).await);

    // The store refuses to renew the lock, so the lock is lost; then its holder ends, which the
    // signal reports.
    harness.store.inject_always(Fault::Refuse);
    assert_eq!(timeout(TTL, lost).await.unwrap().cause, LostCause::Expired);
    holder.await.unwrap().unwrap_err();
    drop(respond);
    harness.store.heal();
    timeout(TTL, settled.clone()).await.expect("the holder ends");
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_shutdown_lets_held_locks_settle() {
    for delivery in DELIVERIES {
        let harness = Harness::new();
        let (service, mut handle) = harness.mock_service(harness.layer());
        // Dropped before its first poll.
        drop(harness.keeper.shutdown(HOUR));
        let call = service.start(request("p-1"));
        let (_, respond) = handle.next_request().await.unwrap();
        assert!(!poll_once(pin!(harness.keeper.shutdown(HOUR))).await, "a lock is held");
        run_until_idle().await;
        let refused = service.run("p-2").await;
        assert!(matches!(layer_error(&refused), IdempotencyError::ShuttingDown), "{refused:?}");

        delivery.inject(&harness, "complete");
        respond.send_response("done");
        assert!(is_pending(&call).await);
        // Dropped while the keeper settles.
        assert!(timeout(DROP_AFTER, harness.keeper.shutdown(HOUR)).await.is_err(), "{delivery:?}");
        delivery.finish(&harness).await;
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"), "{delivery:?}");
        assert_eq!(harness.state("p-1"), Some(State::Completed), "{delivery:?}");
        sleep(DROP_AFTER).await;
        harness.assert_settled().await;
    }
}
