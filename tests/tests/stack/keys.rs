//! Keys that do not distinguish events: what is documented as their risk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use campanile::prelude::*;
use campanile::{LockKeeper, Request};
use campanile_test::{Message, MockKafka};
use tower::{Service, ServiceBuilder};

use super::{serve, start_kafka};

/// Counts the calls of a handler, and the requests that are answered as duplicates.
#[derive(Clone, Default)]
struct Counts {
    runs: Arc<AtomicU32>,
    duplicates: Arc<AtomicU32>,
}

impl Counts {
    fn service<K>(
        &self,
        keeper: &LockKeeper,
        key: K,
    ) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<K>
    where
        K: key::KeyExtractor<Request> + Send + Sync + 'static,
    {
        let layer = IdempotencyLayer::new(keeper, IdempotencyConfig::new("payments"), key).unwrap();
        let (runs, duplicates) = (self.runs.clone(), self.duplicates.clone());
        ServiceBuilder::new()
            .map_response(move |outcome: Outcome<()>| {
                duplicates.fetch_add(u32::from(outcome.is_duplicate()), Ordering::Relaxed);
            })
            .layer(DecodeLayer::raw())
            .layer(layer)
            .service_fn(move |_: Request| {
                runs.fetch_add(1, Ordering::Relaxed);
                async { Ok::<_, BoxError>(()) }
            })
    }

    fn runs_and_duplicates(&self) -> (u32, u32) {
        (self.runs.load(Ordering::Relaxed), self.duplicates.load(Ordering::Relaxed))
    }
}

fn fill(kafka: &MockKafka, payloads: [&'static str; 2]) {
    let message = |payload| Message::to("payments").partition(0).key("account-1").payload(payload);
    kafka.producer().produce_all(payloads.map(message)).unwrap();
}

#[tokio::test]
async fn later_event_of_same_record_key_is_answered_as_duplicate() {
    let kafka = start_kafka([]);
    fill(&kafka, ["opened", "closed"]);
    let keeper = LockKeeper::new(MemoryStore::new()).unwrap();
    let counts = Counts::default();
    let key = key::record_key_only_first_record_counts();
    serve(&kafka, 2, counts.service(&keeper, key)).await.unwrap();
    assert_eq!(counts.runs_and_duplicates(), (1, 1));
}

#[tokio::test]
async fn coordinates_in_a_topic_of_another_cluster_are_other_keys() {
    let keeper = LockKeeper::new(MemoryStore::new()).unwrap();
    let (old, recreated) = (Counts::default(), Counts::default());
    for (payloads, counts) in [(["a", "b"], &old), (["c", "d"], &recreated)] {
        // A new cluster has the topic with the same name and offsets.
        let kafka = start_kafka([]);
        fill(&kafka, payloads);
        serve(&kafka, 2, counts.service(&keeper, key::coordinates())).await.unwrap();
    }
    assert_eq!(old.runs_and_duplicates(), (2, 0));
    assert_eq!(recreated.runs_and_duplicates(), (2, 0));
}
