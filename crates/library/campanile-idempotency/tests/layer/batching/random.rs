//! Requests that arrive, are dropped and fail at random, on several threads.

use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::BatchLayer;
use tokio::task::{JoinSet, yield_now};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

const REQUESTS: u64 = 4000;
const MAX: usize = 16;

/// Fails every seventh request, and every batch with a first request divisible by eleven; every
/// third of these batches panics.
async fn handle(batch: Vec<u64>) -> Result<Vec<Result<u64, BoxError>>, BoxError> {
    assert!(!batch.is_empty() && batch.len() <= MAX, "{}", batch.len());
    for _ in 0..batch[0] % 5 {
        yield_now().await;
    }
    match batch[0] {
        n if n.is_multiple_of(33) => std::panic::resume_unwind(Box::new("test panic")),
        n if n.is_multiple_of(11) => return Err("the batch".into()),
        _ => {}
    }
    let result =
        |n: &u64| if n.is_multiple_of(7) { Err(format!("own {n}").into()) } else { Ok(n * 10) };
    Ok(batch.iter().map(result).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remaining_requests_get_their_own_answers_under_random_drops() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let handler = ServiceBuilder::new().concurrency_limit(3).service(service_fn(handle));
    let service = BatchLayer::new(MAX, Duration::from_micros(200)).unwrap().layer(handler);
    let mut calls = JoinSet::new();
    for n in 1..=REQUESTS {
        let call = service.clone().oneshot(n);
        // Some requests are dropped before, while or after their batch runs.
        let polls_before_drop = (random.u8(..4) == 0).then(|| random.u32(..20));
        calls.spawn(async move {
            let Some(polls_before_drop) = polls_before_drop else { return (n, Some(call.await)) };
            let drop_after_polls = async {
                for _ in 0..polls_before_drop {
                    yield_now().await;
                }
            };
            tokio::select! {
                result = call => (n, Some(result)),
                () = drop_after_polls => (n, None),
            }
        });
        if random.u8(..8) == 0 {
            yield_now().await;
        }
    }
    let (mut answered, mut own_errors, mut dropped) = (0, 0, 0);
    while let Some(joined) = calls.join_next().await {
        match joined.unwrap() {
            (n, Some(Ok(answer))) => {
                assert_eq!(answer, n * 10);
                answered += 1;
            }
            (n, Some(Err(error))) => {
                // The request's own error, or that of its batch.
                let text = error.to_string();
                if text.starts_with("own") {
                    assert_eq!(text, format!("own {n}"));
                    own_errors += 1;
                }
            }
            (_, None) => dropped += 1,
        }
    }
    assert!(answered > 0 && own_errors > 0 && dropped > 0, "{answered} {own_errors} {dropped}");
    let free = format!("free: {}", 2 * MAX);
    // The requests dropped last may still be queued. The next batch removes them.
    let last = service.clone().oneshot(1).await;
    assert_eq!(last.unwrap(), 10);
    assert!(format!("{service:?}").contains(&free), "{service:?}");
}
