//! A user with topics and a group of its own, and the consumer of the guide.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::consumer::{Serve, Summary};
use campanile::prelude::*;
use campanile::{Consumer, ConsumerError, DeadLetter, Request, RetryTopics, error};
use campanile_test::{Message, eventually};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tower::ServiceBuilder;

use crate::rights::{Right, for_purposes, scene_name};
use crate::{PASSWORD, SERVER, TIMEOUT, group};

/// How long a publication that is refused is retried.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

#[derive(Clone)]
pub(crate) struct Scene {
    user: &'static str,
    pub(crate) topic: String,
    pub(crate) retry: String,
    pub(crate) dead: String,
    pub(crate) group: String,
    pub(crate) store: MemoryStore,
    /// How often each handler was run.
    runs: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Scene {
    /// Creates the topics.
    pub(crate) fn new(user: &'static str) -> Self {
        let name = |name| scene_name(user, name);
        let [topic, retry, dead] = ["payments", "payments.retry", "payments.dead"].map(name);
        for topic in [&topic, &retry, &dead] {
            SERVER.kafka.create_topic(topic, 1, &[]).unwrap();
        }
        let (group, store, runs) = (name("billing"), MemoryStore::new(), Arc::default());
        Self { user, topic, retry, dead, group, store, runs }
    }

    pub(crate) fn name(&self, name: &str) -> String {
        scene_name(self.user, name)
    }

    /// Gives the user the rights that the guide lists for these purposes.
    pub(crate) fn allow(&self, purposes: &[&str]) -> Vec<Right> {
        let rights = for_purposes(self.user, purposes);
        rights.iter().for_each(Right::allow);
        rights
    }

    /// The settings of a client of the user.
    pub(crate) fn client(&self) -> ClientConfig {
        let mut config = SERVER.kafka.consumer_config(&self.group);
        config
            .set("bootstrap.servers", SERVER.kafka.secured_bootstrap())
            .set("security.protocol", "sasl_ssl")
            .set("ssl.ca.location", SERVER.authority.path("ca.crt").display().to_string())
            .set("sasl.mechanism", "SCRAM-SHA-512")
            .set("sasl.username", self.user)
            .set("sasl.password", PASSWORD);
        config
    }

    /// The settings of a client that may do everything.
    pub(crate) fn unlimited_client(&self) -> ClientConfig {
        SERVER.kafka.consumer_config(&self.group)
    }

    /// Produces payments with these ids: of those that begin with `retry`, the first attempt fails, and
    /// of those that begin with `dead`, all.
    pub(crate) fn produce(&self, ids: &[&str]) {
        let message =
            |id: &&str| Message::to(&self.topic).key(*id).payload(format!("{{\"id\":\"{id}\"}}"));
        SERVER.kafka.producer().produce_all(ids.iter().map(message)).unwrap();
    }

    pub(crate) fn serve(&self, config: ClientConfig, start_timeout: Duration) -> Serve {
        let runs = self.runs.clone();
        let layer = IdempotencyLayer::new(
            self.store.clone(),
            self.group.as_str(),
            key::field(|payment: &Payment| &payment.id),
        );
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::json())
            .layer(layer.unwrap())
            .service_fn(move |request: Request<Payment>| {
                let id = request.body().id.clone();
                let mut runs = runs.lock().unwrap();
                let attempts = runs.entry(id.clone()).or_default();
                *attempts += 1;
                let result = match &*id {
                    id if id.starts_with("dead") => Err(error::permanent("declined").into()),
                    id if id.starts_with("retry") && *attempts == 1 => Err(BoxError::from("busy")),
                    _ => Ok(()),
                };
                async move { result }
            });
        let retries = RetryTopics::new().then(&self.retry, Duration::from_millis(10));
        Consumer::new(config)
            .unwrap()
            .subscribe([&self.topic])
            .with_retry_topics(retries.with_timeout(PUBLISH_TIMEOUT))
            .on_give_up(DeadLetter::topic(self.dead.as_str()).with_timeout(PUBLISH_TIMEOUT))
            .with_start_timeout(start_timeout)
            .serve(service)
    }

    /// Starts the consumer.
    pub(crate) fn start(&self, config: ClientConfig) -> Running {
        Running::start(self.serve(config, TIMEOUT))
    }

    /// Serves until everything that was produced is committed.
    pub(crate) async fn serve_all(&self, config: ClientConfig) {
        let running = self.start(config);
        self.all_committed().await;
        running.stop().await.unwrap();
    }

    /// Waits until everything that was produced is committed.
    pub(crate) async fn all_committed(&self) {
        let scene = self.clone();
        let wait = move || {
            // The copies of a record are in the retry topic when its offset is committed.
            for topic in [&scene.topic, &scene.retry] {
                if scene.count(topic) == 0 {
                    continue;
                }
                group::wait_until_committed(&scene.unlimited_client(), topic, 1, TIMEOUT);
            }
        };
        spawn_blocking(wait).await.unwrap();
    }

    /// How often each handler was run.
    pub(crate) fn runs(&self) -> BTreeMap<String, usize> {
        self.runs.lock().unwrap().clone()
    }

    /// The number of records in the topic.
    pub(crate) fn count(&self, topic: &str) -> i64 {
        let consumer: BaseConsumer = self.unlimited_client().create().unwrap();
        // A busy broker may have lost its leadership for a moment.
        let end = || Some(consumer.fetch_watermarks(topic, 0, TIMEOUT).ok()?.1);
        eventually(TIMEOUT, end).expect("the broker reports the end")
    }
}

/// A consumer that serves.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<Summary, ConsumerError>>,
}

impl Running {
    pub(crate) fn start(serve: Serve) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = serve.with_graceful_shutdown(async move { stopped.await.unwrap_or_default() });
        Self { stop, serving: tokio::spawn(serve.into_future()) }
    }

    pub(crate) async fn stop(self) -> Result<Summary, ConsumerError> {
        // Serving may have ended.
        let _ = self.stop.send(());
        tokio::time::timeout(TIMEOUT, self.serving).await.expect("serving ends in time").unwrap()
    }

    /// Waits until serving ends.
    pub(crate) async fn ended(self) -> Result<Summary, ConsumerError> {
        let _stop = self.stop;
        tokio::time::timeout(TIMEOUT, self.serving).await.expect("serving ends in time").unwrap()
    }

    /// Waits until serving ends with an error that contains these words, or logs an event with them
    /// after the `earlier` ones, and then stops.
    pub(crate) async fn complains(self, words: &[&str], earlier: usize) {
        let wait = async {
            while !self.serving.is_finished() && SERVER.events.count(words) == earlier {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, wait)
            .await
            .unwrap_or_else(|_| panic!("nothing says {words:?}"));
        if let Err(error) = self.stop().await {
            let text = format!("{error:?}");
            assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
        } else {
            assert!(SERVER.events.count(words) > earlier, "{words:?}");
        }
    }
}
