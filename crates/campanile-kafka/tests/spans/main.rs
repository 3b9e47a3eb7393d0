//! What can be seen from outside. A binary of its own: whether a place is of interest is cached for
//! the whole process, and other tests would be there first, without a subscriber.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[allow(dead_code, reason = "shared with the other binary, which needs all of it")]
#[path = "../kafka/support.rs"]
mod support;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, Record, error};
use campanile_test::{Message, MockKafka};
use tower::service_fn;
use tracing_subscriber::fmt::format::FmtSpan;

use support::{consumer, serve, until_committed};

/// What was written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// On one thread, since only that one has this test's subscriber.
#[tokio::test(flavor = "current_thread")]
async fn each_attempt_has_a_span_that_names_the_record_and_shows_neither_key_nor_payload() {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_span_events(FmtSpan::NEW)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    let secret = Message::to("orders").partition(0).key("s3cret-key").payload("s3cret-payload");
    kafka.producer().produce(secret.header("h", "s3cret-header")).unwrap();
    let config = kafka.consumer_config("billing");
    let mut first = true;
    let service = service_fn(move |_: Record| {
        let fails = std::mem::take(&mut first);
        async move {
            match fails {
                true => Err(BoxError::from(error::retry_after("no route", Duration::ZERO))),
                false => Ok(()),
            }
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();

    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let spans: Vec<&str> = text.lines().filter(|line| line.contains("record{")).collect();
    let begun = spans.iter().filter(|line| line.ends_with("new")).count();
    assert_eq!(begun, 2, "{text}");
    for field in [
        "otel.name=process orders",
        r#"otel.kind="consumer""#,
        r#"messaging.system="kafka""#,
        r#"messaging.operation.name="process""#,
        r#"messaging.destination.name="orders""#,
        "messaging.destination.partition.id=0",
        "messaging.kafka.offset=0",
        r#"messaging.consumer.group.name="billing""#,
    ] {
        assert!(spans[0].contains(field), "{field} is not in {}", spans[0]);
    }
    let told = |line: &&str| line.contains("WARN") && line.contains("orders/0@0");
    let retried = text.lines().find(told).unwrap_or_else(|| panic!("no event in {text}"));
    assert!(retried.contains("no route"), "{retried}");
    assert!(!text.contains("s3cret"), "{text}");
}
