//! OAuth tokens, up to the connection: librdkafka's mock cluster does not authenticate clients.

use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Record};
use campanile_kafka::{Consumer, ConsumerConfig, OauthToken};
use tokio::sync::mpsc;
use tower::service_fn;

use crate::support::{mock, serve, within};

/// Adds a function that reports each of its calls.
fn with_token(config: ConsumerConfig) -> (ConsumerConfig, mpsc::UnboundedReceiver<()>) {
    let (called, calls) = mpsc::unbounded_channel();
    let config = config.with_oauth_token(move || {
        called.send(())?;
        #[expect(clippy::disallowed_methods, reason = "a token expires by the wall clock")]
        Ok(OauthToken::new("a.b.c", SystemTime::now() + Duration::from_secs(3600)))
    });
    (config, calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_obtains_a_token_before_it_connects() {
    let kafka = mock("orders", 1, 1);
    let (config, mut calls) = with_token(kafka.consumer_config("g").into());
    let consumer = Consumer::new(config).unwrap().subscribe(["orders"]);
    let serving = serve(consumer, service_fn(async |_: Record| Ok::<_, BoxError>(())));
    assert_eq!(within("a token is obtained", calls.recv()).await, Some(()));
    serving.stop().await.unwrap();
}

/// Without TLS, librdkafka has no OAUTHBEARER.
#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producer_asks_for_a_token_by_itself() {
    let config = ConsumerConfig::new("127.0.0.1:1", "g").set("security.protocol", "sasl_plaintext");
    let (config, mut calls) = with_token(config);
    let publisher = campanile_kafka::Publisher::new(config).unwrap();
    assert_eq!(within("a token is obtained", calls.recv()).await, Some(()));
    drop(publisher);
}
