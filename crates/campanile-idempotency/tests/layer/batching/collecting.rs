//! When a batch begins, and with whom.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::BatchLayer;
use futures_util::FutureExt;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

use super::{answer, seen, staged, start};
use crate::world::{HOUR, settle_down};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn when_none_is_at_work_a_request_goes_at_once() {
    let (service, mut stage) = staged(100, HOUR);
    let begun = Instant::now();
    for n in 1..4 {
        let call = start(&service, n);
        let batch = stage.next_request().await.unwrap();
        assert_eq!(batch.0, [n]);
        answer(batch);
        assert_eq!(call.await.unwrap().unwrap(), n * 10);
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_batch_is_at_work_goes_together_when_that_ends() {
    let (service, mut stage) = staged(100, HOUR);
    let first = start(&service, 1);
    let at_work = stage.next_request().await.unwrap();
    let calls = [start(&service, 2), start(&service, 3), start(&service, 4)];
    settle_down().await;
    assert!(seen(&mut stage).is_none());
    answer(at_work);
    let batch = stage.next_request().await.unwrap();
    assert_eq!(batch.0, [2, 3, 4]);
    answer(batch);
    assert_eq!(first.await.unwrap().unwrap(), 10);
    for (call, expected) in calls.into_iter().zip([20, 30, 40]) {
        assert_eq!(call.await.unwrap().unwrap(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_full_goes_beside_those_at_work() {
    let (service, mut stage) = staged(3, HOUR);
    let _first = start(&service, 1);
    let _at_work = stage.next_request().await.unwrap();
    let _calls: Vec<_> = (2..=6).map(|n| start(&service, n)).collect();
    assert_eq!(stage.next_request().await.unwrap().0, [2, 3, 4]);
    settle_down().await;
    assert!(seen(&mut stage).is_none(), "two are no full batch");
}

#[tokio::test(start_paused = true)]
async fn the_oldest_waits_for_others_no_longer_than_the_linger() {
    let (service, mut stage) = staged(100, SECOND);
    let _first = start(&service, 1);
    let _at_work = stage.next_request().await.unwrap();
    let begun = Instant::now();
    let _second = start(&service, 2);
    tokio::time::sleep(SECOND / 2).await;
    let _third = start(&service, 3);
    assert_eq!(stage.next_request().await.unwrap().0, [2, 3]);
    let waited = begun.elapsed();
    assert!((SECOND..SECOND + Duration::from_millis(2)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn while_the_service_is_not_ready_the_batch_grows_up_to_its_largest() {
    let (service, mut stage) = staged(3, Duration::ZERO);
    stage.allow(0);
    let calls: Vec<_> = (1..=5).map(|n| start(&service, n)).collect();
    settle_down().await;
    assert!(seen(&mut stage).is_none());
    stage.allow(2);
    for expected in [vec![1, 2, 3], vec![4, 5]] {
        let batch = stage.next_request().await.unwrap();
        assert_eq!(batch.0, expected);
        answer(batch);
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_twice_a_batch_and_the_others_are_not_ready() {
    let (service, mut stage) = staged(2, HOUR);
    stage.allow(0);
    let _calls: Vec<_> = (1..=4).map(|n| start(&service, n)).collect();
    settle_down().await;
    let mut fifth = service.clone();
    assert!(fifth.ready().now_or_never().is_none());
    stage.allow(1);
    // The first two have begun.
    assert_eq!(stage.next_request().await.unwrap().0, [1, 2]);
    fifth.ready().await.unwrap();
    // That was the last but one, and a clone has none of its own.
    let mut sixth = fifth.clone();
    sixth.ready().await.unwrap();
    assert!(sixth.clone().ready().now_or_never().is_none());
    drop(fifth);
    sixth.clone().ready().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_while_it_waits_is_not_handed_to_the_service() {
    let (service, mut stage) = staged(100, HOUR);
    let _first = start(&service, 1);
    let at_work = stage.next_request().await.unwrap();
    let (second, third, fourth) = (start(&service, 2), start(&service, 3), start(&service, 4));
    settle_down().await;
    second.abort();
    fourth.abort();
    settle_down().await;
    answer(at_work);
    let batch = stage.next_request().await.unwrap();
    assert_eq!(batch.0, [3]);
    answer(batch);
    assert_eq!(third.await.unwrap().unwrap(), 30);
    settle_down().await;
    let free = format!("{service:?}");
    assert!(free.contains("free: 200"), "they have given their places back: {free}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_a_batch_at_work_leaves_the_others_alone() {
    let (service, mut stage) = staged(100, HOUR);
    let _first = start(&service, 1);
    let at_work = stage.next_request().await.unwrap();
    let (second, third) = (start(&service, 2), start(&service, 3));
    settle_down().await;
    answer(at_work);
    let batch = stage.next_request().await.unwrap();
    second.abort();
    settle_down().await;
    answer(batch);
    assert_eq!(third.await.unwrap().unwrap(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_nobody_waits_for_any_more_is_dropped() {
    let held = Arc::new(());
    let theirs = held.clone();
    let handler = service_fn(move |batch: Vec<u32>| {
        let held = theirs.clone();
        async move {
            if batch.contains(&0) {
                std::future::pending::<()>().await;
            }
            drop(held);
            Ok::<_, BoxError>(batch.into_iter().map(Ok::<_, BoxError>).collect())
        }
    });
    let service = BatchLayer::new(100, Duration::ZERO).unwrap().layer(handler);
    let hanging = start(&service, 0);
    settle_down().await;
    assert_eq!(Arc::strong_count(&held), 3);
    hanging.abort();
    settle_down().await;
    assert_eq!(Arc::strong_count(&held), 2);
    assert_eq!(start(&service, 1).await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_served_also_when_nobody_has_the_service_any_more() {
    let (mut service, mut stage) = staged(100, HOUR);
    let first = service.ready().await.unwrap().call(1);
    let at_work = stage.next_request().await.unwrap();
    let second = service.ready().await.unwrap().call(2);
    drop(service);
    assert_eq!(stage.next_request().await.unwrap().0, [2]);
    answer(at_work);
    assert_eq!(first.await.unwrap(), 10);
    drop(second);
    assert!(stage.next_request().await.is_none(), "the worker has ended");
}

#[test]
fn a_batch_of_none_or_of_too_many_is_refused() {
    for max in [0, 65_537] {
        let error = BatchLayer::<u32>::new(max, HOUR).unwrap_err().to_string();
        assert!(error.contains(&max.to_string()), "{error}");
    }
    BatchLayer::<u32>::new(65_536, HOUR).unwrap();
}
