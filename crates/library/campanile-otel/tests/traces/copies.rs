//! Copies in retry topics, and dead letters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, Output, Record, error};
use campanile_kafka::{DeadLetter, RetryTopics};
use campanile_test::MockKafka;
use tower::service_fn;

use crate::support::{Serving, Traces, consumer, parent, position_of_header, send};

#[tokio::test(flavor = "current_thread")]
async fn retries_and_dead_letter_stay_in_the_trace_of_the_producer() {
    let traces = Traces::start();
    let kafka = MockKafka::start(1).unwrap();
    for topic in ["orders", "orders.retry", "orders.dead"] {
        kafka.create_topic(topic, 1).unwrap();
    }
    let service = service_fn(async |record: Record| match record.topic() {
        "orders" => Err::<(), _>(BoxError::from("busy")),
        _ => Err(error::permanent("card expired").into()),
    });
    let billing = consumer(&kafka, "billing", "orders")
        .with_retry_topics(RetryTopics::new().then("orders.retry", Duration::from_millis(10)))
        .on_give_up(DeadLetter::topic("orders.dead"));
    let billing = Serving::start(billing.serve(service));
    let letters: Arc<Mutex<Vec<Record>>> = Arc::default();
    let seen = letters.clone();
    let support = service_fn(move |letter: Record| {
        seen.lock().unwrap().push(letter);
        async { Ok::<_, BoxError>(()) }
    });
    let support = Serving::start(consumer(&kafka, "support", "orders.dead").serve(support));

    let sent = send(&kafka, Output::to("orders").payload("1")).await;
    let [first] = traces.until("process orders").await;
    let [second] = traces.until("process orders.retry").await;
    let [letter] = traces.until("process orders.dead").await;
    billing.stop().await;
    support.stop().await;
    for span in [&first, &second, &letter] {
        assert_eq!(parent(span), sent, "{}", span.name);
    }
    assert_eq!(position_of_header(&letters.lock().unwrap()[0]), sent);
}
