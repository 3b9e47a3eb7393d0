//! The documents with terminal sessions: each command is run on real servers, and prints what the
//! document shows.

use std::time::Duration;

use campanile_core::{
    BoxError, Command, Coordinates, DecodeLayer, Details, FencingToken, Grant, IdempotencyKey,
    Operation, Owner, Reply, Request, Retention, StoreKey, key,
};
use campanile_idempotency::{Backoff, IdempotencyConfig, IdempotencyLayer, LockKeeper, Store};
use campanile_kafka::{Consumer, DeadLetter, Handle};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{Message, RedisServer};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::Value;
use tokio::task::JoinHandle;
use tower::{ServiceBuilder, service_fn};

use crate::support::KAFKA;
use crate::terminal::{Step, Terminal, steps};

const NAMESPACE: &str = "billing.payments";
const GROUP: &str = "billing";
const TIMEOUT: Duration = Duration::from_secs(30);

fn terminal(redis: &RedisServer) -> Terminal {
    Terminal {
        settings: vec![
            ("CAMPANILE_STORE", redis.url(), "redis://127.0.0.1:6379"),
            ("CAMPANILE_BROKERS", KAFKA.bootstrap(), "127.0.0.1:9092"),
            ("CAMPANILE_NAMESPACE", NAMESPACE.into(), NAMESPACE),
        ],
    }
}

/// Connects to the server, which may answer late on a stalled machine.
async fn connect(redis: &RedisServer) -> RedisStore {
    let config = RedisConfig::new(redis.url()).with_command_timeout(TIMEOUT);
    RedisStore::connect(config).await.unwrap()
}

/// A payment, which is a refund if its amount is negative.
fn payment(number: usize, cents: i64) -> Message {
    let payload = serde_json::json!({ "id": format!("p-{number}"), "cents": cents });
    Message::to("payments").partition(0).payload(payload.to_string())
}

/// The service of the document.
fn serve(store: &RedisStore, supports_refunds: bool) -> (Handle, JoinHandle<()>) {
    let keeper = LockKeeper::new(store.clone()).unwrap().with_instance("payments-7d9f/1");
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
    let config = IdempotencyConfig::new(NAMESPACE).with_max_attempts(3).with_backoff(backoff);
    let id = |payment: &Value| payment["id"].as_str().unwrap_or_default().to_owned();
    let charge = move |request: Request<Value>| async move {
        let cents = request.body()["cents"].as_i64().unwrap_or_default();
        if cents < 0 && !supports_refunds {
            return Err(BoxError::from(format!("invalid amount {cents}")));
        }
        Ok(())
    };
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(IdempotencyLayer::new(&keeper, config, key::body(id)).unwrap())
        .service(service_fn(charge));
    let serve = Consumer::new(KAFKA.consumer_config(GROUP))
        .unwrap()
        .subscribe(["payments"])
        .on_give_up(DeadLetter::topic("payments.dead"))
        .serve(service);
    (serve.handle(), tokio::spawn(async move { serve.await.map(|_| ()).unwrap() }))
}

/// Waits until this many records of the topic are committed.
async fn wait_until_committed(records: i64) {
    let committed = move || {
        let consumer: BaseConsumer = KAFKA.consumer_config(GROUP).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition("payments", 0);
        // The group's coordinator may still be starting.
        let committed = consumer.committed_offsets(list, TIMEOUT).ok()?;
        let offset = committed.find_partition("payments", 0).unwrap().offset();
        (offset == Offset::Offset(records)).then_some(())
    };
    let waiting =
        tokio::task::spawn_blocking(move || campanile_test::eventually(TIMEOUT, committed));
    waiting.await.unwrap().expect("the records are committed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incident_prints_what_its_document_shows() {
    let redis = RedisServer::builder().append_only(true).start().unwrap();
    let store = connect(&redis).await;
    let terminal = terminal(&redis);
    for topic in ["payments", "payments.dead"] {
        KAFKA.create_topic(topic, 1, &[]).unwrap();
    }
    let (mut handle, mut serving) = serve(&store, false);
    let payments = [payment(1, 500), payment(2, 1_200), payment(3, -500), payment(4, 700)];
    KAFKA.producer().produce_all(payments).unwrap();
    wait_until_committed(4).await;

    let mut commands = 0;
    for step in steps(include_str!("../../../../../docs/incident.md")) {
        match step {
            Step::Comment("the fix is deployed") => {
                handle.shutdown();
                serving.await.unwrap();
                (handle, serving) = serve(&store, true);
            }
            Step::Comment("the record is processed") => wait_until_committed(5).await,
            step => {
                terminal.check(&step);
                commands += 1;
            }
        }
    }
    assert!(commands > 5, "only {commands} commands were run");
    handle.shutdown();
    serving.await.unwrap();
}

/// Plants what the document shows: a record that waits for its next attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_and_repair_prints_what_its_document_shows() {
    let redis = RedisServer::start().unwrap();
    let store = connect(&redis).await;
    let mut terminal = terminal(&redis);
    // A topic of its own, with the name of the document's.
    let kafka = campanile_test::MockKafka::start(1).unwrap();
    terminal.settings[1].1 = kafka.bootstrap();
    kafka.create_topic("payments", 4).unwrap();
    let record = |_| Message::to("payments").partition(3).header("idempotency-key", "p-1");
    kafka.producer().produce_all((0..97).map(record)).unwrap();
    let committer: BaseConsumer = kafka.consumer_config(GROUP).create().unwrap();
    let mut committed = TopicPartitionList::new();
    committed.add_partition_offset("payments", 3, Offset::Offset(42)).unwrap();
    committer.commit(&committed, CommitMode::Sync).unwrap();
    for _ in 0..3 {
        fail(&store).await;
    }
    let document = include_str!("../../../../../docs/inspect-and-repair.md");
    for step in steps(document) {
        terminal.check(&step);
    }
}

/// Fails an attempt of the key `p-1`.
async fn fail(store: &RedisStore) {
    let key = IdempotencyKey::new("p-1").unwrap();
    let owner = Owner::new(fastrand::u64(1..)).unwrap();
    let record = Coordinates { topic: "payments".into(), partition: 3, offset: 42 };
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
    let details =
        Details::builder(owner).key(&key).instance("payments-7d9f/1").coordinates(&record);
    let apply = |operation| {
        let key = StoreKey::new(NAMESPACE.try_into().unwrap(), &key);
        store.apply(Command { key, operation, retention: Retention::default() })
    };
    let acquire = Operation::Acquire {
        owner,
        ttl: TIMEOUT,
        max_attempts: 8,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: Some(details.trace(&trace).build()),
    };
    let Reply::Acquired { token, attempt, .. } = apply(acquire).await.unwrap().reply else {
        panic!("the key is not granted");
    };
    let delay = if attempt < 3 { Duration::ZERO } else { Duration::from_secs(3_600) };
    let (grant, error) = (Grant { token, owner }, "card declined".into());
    apply(Operation::Fail { grant, delay, last: false, error }).await.unwrap();
}
