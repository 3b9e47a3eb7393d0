//! Outputs that the brokers do not take.

use campanile::prelude::*;
use campanile::{ConsumerError, Output, Outputs, Transactions};

use crate::{KAFKA, LONG, Topics};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_for_a_topic_that_does_not_exist_stops_the_consumer_and_names_both() {
    let topics = tokio::task::spawn_blocking(|| {
        let topics = Topics::create();
        KAFKA.producer().produce(topics.payment(0, 7)).unwrap();
        topics
    });
    let payments = topics.await.unwrap().payments;
    let transactions = Transactions::new("refused")
        // not half a minute for a topic that was just created
        .set("topic.metadata.propagation.max.ms", "500");
    let service = tower::service_fn(|record: Record| async move {
        Ok::<_, BoxError>(Outputs::of(&record).with(Output::to("no-such-topic")))
    });
    let config = KAFKA.consumer_config("refused");
    let serving = Consumer::new(config).unwrap().subscribe([payments.clone()]);
    let serving = serving.serve_transactional(service, transactions).into_future();
    let ended = tokio::time::timeout(LONG, serving).await.expect("it ends");
    match ended.unwrap_err() {
        ConsumerError::Stopped { at, source } => {
            assert_eq!(at.to_string(), format!("{payments}/0@0"));
            assert!(format!("{source:?}").contains("no-such-topic"), "{source:?}");
        }
        other => panic!("{other:?}"),
    }
}
