//! A dependency of the handlers that is unavailable: no attempt is counted, and no record is deferred or given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Request, error, key};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, MemoryStore};
use campanile_kafka::{DeadLetter, ProcessingOrder, RetryTopics};
use tower::ServiceBuilder;

use crate::support::{Log, committed, consumer, mock, serve, until, until_committed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_dependency_defers_and_gives_up_no_record() {
    let orders =
        [ProcessingOrder::by_partition(), ProcessingOrder::by_key(), ProcessingOrder::unordered()];
    for order in orders {
        let kafka = mock("orders", 4, 20);
        for topic in ["orders.soon", "orders.dead"] {
            kafka.create_topic(topic, 1).unwrap();
        }
        let config = kafka.consumer_config("g");
        let (down, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let log = Log::default();
        let (is_down, called, seen) = (down.clone(), calls.clone(), log.clone());
        let settings = IdempotencyConfig::new("orders").with_max_attempts(1);
        let layer = IdempotencyLayer::new(MemoryStore::new(), settings, key::coordinates());
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::raw())
            .layer(layer.unwrap())
            .service_fn(move |request: Request| {
                let down = is_down.load(Ordering::SeqCst);
                if down {
                    called.fetch_add(1, Ordering::SeqCst);
                } else {
                    seen.push(request.record());
                }
                async move {
                    match down {
                        true => Err(BoxError::from(error::unavailable("connection refused"))),
                        false => Ok(()),
                    }
                }
            });
        let consumer = consumer(config.clone(), "orders")
            .with_order(order)
            .with_retry_topics(RetryTopics::new().then("orders.soon", Duration::from_millis(100)))
            .on_give_up(DeadLetter::topic("orders.dead"));
        let serving = serve(consumer, service);
        let handle = serving.handle();
        until("the outage is reported", || handle.status().unavailable.len() == 1).await;
        let before = calls.load(Ordering::SeqCst);
        until("probes are sent", || calls.load(Ordering::SeqCst) >= before + 4).await;
        assert_eq!(handle.health().ready, Ok(()));
        let unavailable = &handle.status().unavailable[0];
        assert!(unavailable.error.ends_with("connection refused"), "{}", unavailable.error);
        assert_eq!(committed(&config, "orders", 4), [None; 4]);

        down.store(false, Ordering::SeqCst);
        until_committed(&config, "orders", &[20; 4]).await;
        until("the outage is over", || handle.status().unavailable.is_empty()).await;
        let summary = serving.stop().await.unwrap();
        assert_eq!(log.len(), 80);
        assert_eq!((summary.processed, summary.retried, summary.deferred), (80, 0, 0));
        assert_eq!((summary.skipped, summary.dead_lettered), (0, 0));
        assert_eq!(summary.inconclusive, calls.load(Ordering::SeqCst) as u64);
    }
}
