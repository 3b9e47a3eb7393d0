//! Dead letters and copies in retry topics live from their publication, however old their records are.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Record, Timestamp, error, millis};
use campanile_kafka::{DeadLetter, FloodLimit, RetryTopics};
use campanile_test::{KafkaServer, Message};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tower::service_fn;

use crate::real::blocking;
use crate::support::{TIMEOUT, consumer, serve, until};

const WEEK: (&str, &str) = ("retention.ms", "604800000");

/// How long ago the records were created, in milliseconds: longer than the topics keep their records.
const AGE: i64 = 8 * 24 * 60 * 60 * 1000;

/// The offsets of the first and the next record of a topic's only partition.
fn range(kafka: &KafkaServer, topic: &str) -> (i64, i64) {
    let consumer: BaseConsumer = kafka.consumer_config("ranges").create().unwrap();
    consumer.fetch_watermarks(topic, 0, TIMEOUT).unwrap()
}

/// Waits until the broker has looked at every topic's retention. It looks at one topic after the other,
/// so an old record that was produced after two others were deleted proves a whole round.
async fn until_retention_is_applied(kafka: &Arc<KafkaServer>, now: i64) {
    for next in 1..=3 {
        let server = kafka.clone();
        let old = Message::to("canary").partition(0).timestamp(now - AGE);
        blocking(move || server.producer().produce(old).unwrap()).await;
        let is_deleted = || tokio::task::block_in_place(|| range(kafka, "canary") == (next, next));
        until("the old record is deleted", is_deleted).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_and_copies_of_old_records_outlive_a_retention_check() {
    let start = || {
        let kafka = KafkaServer::builder()
            .property("log.retention.check.interval.ms", "200")
            .property("log.initial.task.delay.ms", "100")
            .start()
            .unwrap();
        for topic in ["orders.dead", "orders.retry", "canary"] {
            kafka.create_topic(topic, 1, &[WEEK]).unwrap();
        }
        kafka.create_topic("orders", 1, &[("retention.ms", "-1")]).unwrap();
        kafka
    };
    let kafka = Arc::new(blocking(start).await);
    #[expect(clippy::disallowed_methods, reason = "Kafka's timestamps are wall-clock time")]
    let now = millis::of(SystemTime::now());
    // A backfill, and seconds in the place of milliseconds.
    let times = [now - AGE, now / 1000];
    let server = kafka.clone();
    let message = move |at| Message::to("orders").partition(0).payload("p").timestamp(at);
    blocking(move || server.producer().produce_all(times.map(message)).unwrap()).await;

    let seen = Arc::new(Mutex::new(Vec::new()));
    let records = seen.clone();
    let service = service_fn(move |record: Record| {
        let copy = record.topic() == "orders.retry";
        records.lock().unwrap().push((copy, record.timestamp()));
        let error = if copy { error::permanent("x").into() } else { BoxError::from("busy") };
        async { Err::<(), _>(error) }
    });
    let letters_to = DeadLetter::topic("orders.dead").with_flood_limit(FloodLimit::disabled());
    let consumer = consumer(kafka.consumer_config("g"), "orders")
        .with_retry_topics(RetryTopics::new().then("orders.retry", Duration::from_millis(1)))
        .on_give_up(letters_to);
    let serving = serve(consumer, service);
    let handle = serving.handle();
    until("two letters are published", || handle.status().summary.dead_lettered == 2).await;
    serving.stop().await.unwrap();

    until_retention_is_applied(&kafka, now).await;
    assert_eq!(range(&kafka, "orders.dead"), (0, 2));
    assert_eq!(range(&kafka, "orders.retry"), (0, 2));
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_by_key(|(copy, at)| (*copy, std::cmp::Reverse(at.map(time))));
    let created = times.map(|at| millis::time(at).map(Timestamp::CreateTime));
    let expected = [false, true].map(|copy| created.map(|at| (copy, at))).concat();
    assert_eq!(seen, expected, "the handler gets the record's time, also from its copy");
    blocking(move || drop(kafka)).await;
}

fn time(timestamp: Timestamp) -> SystemTime {
    let (Timestamp::CreateTime(at) | Timestamp::LogAppendTime(at)) = timestamp;
    at
}
