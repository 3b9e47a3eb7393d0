//! The start positions of partitions while a transaction that commits their offsets is open.

use std::time::Duration;

use campanile::prelude::*;
use campanile::{Consumer, Handle, Output, Outputs, Transactions};
use campanile_test::{KafkaServer, Message, Proxy, eventually};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::watch;

use crate::{KAFKA, PARTITIONS, TIMEOUT, Topics, group, invoices, start_behind_proxy};

/// The number of records in each partition.
const RECORDS: i64 = 4;

/// The partition without a committed offset. The consumer looks up its start.
const UNCOMMITTED: i32 = 0;

/// On its own, librdkafka starts at `auto.offset.reset` in this situation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebalance_during_an_open_transaction_resets_no_offset() {
    bill_from_committed_offsets(|| (&*KAFKA, None)).await;
}

/// Lookups of offsets are still in flight when partitions are assigned, sought and revoked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebalance_with_slow_lookups_resets_no_offset() {
    bill_from_committed_offsets(|| {
        let (kafka, proxy) = Box::leak(Box::new(start_behind_proxy()));
        (kafka, Some(proxy))
    })
    .await;
}

/// Two instances share the partitions while a transaction of their former owner is open. Once it is
/// committed, they process only the records that no transaction covers.
async fn bill_from_committed_offsets(
    start: impl FnOnce() -> (&'static KafkaServer, Option<&'static Proxy>) + Send + 'static,
) {
    let setup = tokio::task::spawn_blocking(|| {
        let (kafka, proxy) = start();
        let topics = Topics::create_on(kafka);
        let each = |partition| (0..RECORDS).map(move |id| (partition, id));
        let records = (0..PARTITIONS).flat_map(each).map(|(partition, id)| {
            let message = Message::to(&topics.payments).partition(partition);
            message.key(format!("a-{partition}")).payload(format!("p-{partition}-{id}"))
        });
        kafka.producer().produce_all(records).unwrap();
        let former = FormerOwner::new(kafka, &topics.payments);
        former.begin(RECORDS - 2);
        former.producer.commit_transaction(TIMEOUT).unwrap();
        former.begin(RECORDS - 1);
        if let Some(proxy) = proxy {
            proxy.delay(Duration::from_millis(250));
        }
        (kafka, topics, former)
    });
    let (kafka, topics, former) = setup.await.unwrap();

    let (stop, stopped) = watch::channel(false);
    let one = serve(kafka, &topics, "one", stopped.clone());
    wait_for_partitions(&one.0, PARTITIONS as usize).await;
    let other = serve(kafka, &topics, "other", stopped);
    for handle in [&one.0, &other.0] {
        wait_for_partitions(handle, PARTITIONS as usize / 2).await;
    }
    let settings = kafka.consumer_config(&topics.payments);
    let topic = topics.payments.clone();
    let finished = tokio::task::spawn_blocking(move || {
        former.producer.commit_transaction(TIMEOUT).unwrap();
        group::wait_until_committed(&settings, &topic, PARTITIONS, TIMEOUT);
    });
    finished.await.unwrap();
    stop.send(true).unwrap();
    for (_, serving) in [one, other] {
        serving.await.unwrap().unwrap();
    }
    let read = move || invoices::read(kafka, &topics.invoices, "read_committed");
    let billed = tokio::task::spawn_blocking(read).await.unwrap();
    let mut billed: Vec<_> =
        billed.iter().map(|invoice| (invoice.partition, invoice.offset)).collect();
    billed.sort_unstable();
    let first = |partition| if partition == UNCOMMITTED { 0 } else { RECORDS - 1 };
    let expected = (0..PARTITIONS)
        .flat_map(|partition| (first(partition)..RECORDS).map(move |offset| (partition, offset)));
    assert_eq!(billed, expected.collect::<Vec<_>>());
}

/// A producer that commits offsets of the group in transactions.
struct FormerOwner {
    producer: BaseProducer,
    consumer: BaseConsumer,
    topic: String,
}

impl FormerOwner {
    fn new(kafka: &KafkaServer, topic: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", kafka.bootstrap()).set("transactional.id", "former");
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(TIMEOUT).unwrap();
        let consumer = kafka.consumer_config(topic).create().unwrap();
        Self { producer, consumer, topic: topic.to_owned() }
    }

    /// Begins a transaction that commits this offset in every partition but one.
    fn begin(&self, offset: i64) {
        let mut offsets = TopicPartitionList::new();
        for partition in (0..PARTITIONS).filter(|partition| *partition != UNCOMMITTED) {
            offsets.add_partition_offset(&self.topic, partition, Offset::Offset(offset)).unwrap();
        }
        let group = self.consumer.group_metadata().unwrap();
        self.producer.begin_transaction().unwrap();
        self.producer.send_offsets_to_transaction(&offsets, &group, TIMEOUT).unwrap();
    }
}

type ServeTask =
    tokio::task::JoinHandle<Result<campanile::consumer::Summary, campanile::ConsumerError>>;

/// Starts an instance with this name, which produces an invoice for each payment.
fn serve(
    kafka: &KafkaServer,
    topics: &Topics,
    name: &str,
    mut stopped: watch::Receiver<bool>,
) -> (Handle, ServeTask) {
    let to = topics.invoices.clone();
    let bill = move |record: Record| {
        let id = String::from_utf8(record.payload().unwrap().to_vec()).unwrap();
        let payload = format!("{id} {}@{}", record.partition(), record.offset());
        let output = Output::to(to.clone()).key(record.key().unwrap().clone()).payload(payload);
        async move { Ok::<_, BoxError>(Outputs::of(&record).with(output)) }
    };
    let config = ConsumerConfig::new(kafka.bootstrap(), &topics.payments);
    let config = config.set("group.protocol", "consumer");
    let id = format!("{}-{name}", topics.payments);
    let serve = Consumer::new(config)
        .unwrap()
        .subscribe([topics.payments.clone()])
        .serve_transactional(tower::service_fn(bill), Transactions::new(id))
        .with_graceful_shutdown(async move { drop(stopped.wait_for(|stopped| *stopped).await) });
    (serve.handle(), tokio::spawn(serve.into_future()))
}

async fn wait_for_partitions(handle: &Handle, expected: usize) {
    let handle = handle.clone();
    let assigned = move || (handle.status().partitions.len() == expected).then_some(());
    let waited = tokio::task::spawn_blocking(move || eventually(TIMEOUT, assigned));
    waited.await.unwrap().expect("partitions are assigned");
}
