//! Invalid retry topics are refused when serving begins.

use std::error::Error;
use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_kafka::{Consumer, ConsumerError, DeadLetter, RetryTopics};
use rdkafka::types::RDKafkaRespErr;
use tower::service_fn;

use super::{LATER, SOON, kafka, retrying};
use crate::support::{consumer, serve};

async fn error(consumer: Consumer) -> ConsumerError {
    let ignore = service_fn(async |_: Record| Ok::<_, BoxError>(()));
    serve(consumer, ignore).ended().await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_retry_topic_is_named() {
    let kafka = kafka(&[]);
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    kafka.cluster().topic_error(LATER, unknown).unwrap();
    let error = error(retrying(kafka.consumer_config("g"))).await;
    assert!(error.to_string().contains("retry topic `orders.later` does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradictory_retry_topics_are_refused() {
    let kafka = kafka(&[]);
    let config = || kafka.consumer_config("g");
    let second = Duration::from_secs(1);
    let with = |topics| consumer(config(), "orders").with_retry_topics(topics);
    let latest = {
        let mut config = config();
        config.set("auto.offset.reset", "latest");
        config
    };
    let elsewhere = RetryTopics::new().then(SOON, second).set("bootstrap.servers", "127.0.0.1:1");
    for (consumer, why) in [
        (retrying(latest), "`auto.offset.reset` is `latest`"),
        (with(elsewhere), "go to the cluster that is consumed"),
        (retrying(config()).subscribe([SOON]), "leave it out of `subscribe`"),
        (retrying(config()).on_give_up(DeadLetter::topic(SOON)), "`orders.soon` is consumed"),
        (with(RetryTopics::new()), "no retry topic"),
        (with(RetryTopics::new().then(SOON, second).then(LATER, second)), "longer than"),
        (with(RetryTopics::new().then(SOON, second).set("acks", "0")), "acks"),
    ] {
        let error = error(consumer).await;
        assert!(matches!(error, ConsumerError::Config(_)), "{error:?}");
        let text = error.source().unwrap().to_string();
        assert!(text.contains(why), "{text}");
    }
}
