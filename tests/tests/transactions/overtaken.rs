//! Partitions that are added to a topic while revoked ones are drained.

use std::sync::Arc;

use campanile::consumer::Rebalance;
use campanile::prelude::*;
use campanile::{Consumer, Handle, Output, Outputs, Transactions};
use campanile_test::{KafkaAdmin, Message, eventually};
use tokio::sync::{Semaphore, watch};

use crate::{KAFKA, PARTITIONS, TIMEOUT, Topics, invoices};

/// The number of records in each partition.
const RECORDS: i64 = 3;

/// librdkafka rejoins the group when partitions are added. Those that are being drained then get another owner,
/// and the generation of the former owner's transaction is a valid one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_added_during_a_drain_repeat_no_output() {
    let topics = blocking(|| {
        let topics = Topics::create();
        let each = |partition| (0..RECORDS).map(move |id| (partition, id));
        let records = (0..PARTITIONS).flat_map(each).map(|(partition, id)| {
            let message = Message::to(&topics.payments).partition(partition);
            message.key(format!("a-{partition}")).payload(format!("p-{partition}-{id}"))
        });
        KAFKA.producer().produce_all(records).unwrap();
        topics
    })
    .await;
    let (stop, stopped) = watch::channel(false);
    let (closed, open) =
        [0, usize::MAX >> 4].map(|permits| Arc::new(Semaphore::new(permits))).into();
    let one = serve(&topics, "one", &closed, stopped.clone());
    let (begun, mut rebalances) = (one.0.clone(), one.0.rebalances());
    wait_for("all records are received", move || {
        let status = begun.status();
        status.partitions.len() == PARTITIONS as usize
            && status.partitions.iter().all(|partition| partition.buffered == RECORDS as u64)
    })
    .await;

    let other = serve(&topics, "other", &open, stopped);
    let draining = one.0.clone();
    wait_for("half of the partitions are revoked", move || {
        draining.status().partitions.len() == PARTITIONS as usize / 2
    })
    .await;
    let payments = topics.payments.clone();
    blocking(move || {
        let admin = KafkaAdmin::new(KAFKA.bootstrap());
        admin.add_partitions(&payments, PARTITIONS + 1).unwrap();
    })
    .await;
    let is_lost = async { while !matches!(rebalances.next().await, Some(Rebalance::Lost(_))) {} };
    tokio::time::timeout(TIMEOUT, is_lost).await.expect("half of the partitions are lost");
    closed.add_permits(usize::MAX >> 4);
    let settings = KAFKA.consumer_config(&topics.payments);
    let payments = topics.payments.clone();
    blocking(move || crate::group::wait_until_committed(&settings, &payments, PARTITIONS, TIMEOUT))
        .await;
    stop.send(true).unwrap();
    for (_, serving) in [one, other] {
        serving.await.unwrap().unwrap();
    }
    let billed = blocking(move || invoices::read(&KAFKA, &topics.invoices, "read_committed")).await;
    let mut billed: Vec<_> =
        billed.iter().map(|invoice| (invoice.partition, invoice.offset)).collect();
    billed.sort_unstable();
    let all = (0..PARTITIONS).flat_map(|partition| (0..RECORDS).map(move |at| (partition, at)));
    assert_eq!(billed, all.collect::<Vec<_>>());
}

type ServeTask =
    tokio::task::JoinHandle<Result<campanile::consumer::Summary, campanile::ConsumerError>>;

/// Starts an instance with this name, which produces an invoice for each payment once it has a permit.
fn serve(
    topics: &Topics,
    name: &str,
    gate: &Arc<Semaphore>,
    mut stopped: watch::Receiver<bool>,
) -> (Handle, ServeTask) {
    let (to, gate) = (topics.invoices.clone(), gate.clone());
    let bill = move |record: Record| {
        let id = String::from_utf8(record.payload().unwrap().to_vec()).unwrap();
        let payload = format!("{id} {}@{}", record.partition(), record.offset());
        let output = Output::to(to.clone()).key(record.key().unwrap().clone()).payload(payload);
        let gate = gate.clone();
        async move {
            gate.acquire().await?.forget();
            Ok::<_, BoxError>(Outputs::of(&record).with(output))
        }
    };
    let config = ConsumerConfig::new(KAFKA.bootstrap(), &topics.payments);
    let config = config.set("topic.metadata.refresh.interval.ms", "200");
    let serve = Consumer::new(config)
        .unwrap()
        .subscribe([topics.payments.clone()])
        .serve_transactional(
            tower::service_fn(bill),
            Transactions::new(format!("{}-{name}", topics.payments)),
        )
        .with_graceful_shutdown(async move { drop(stopped.wait_for(|stopped| *stopped).await) });
    (serve.handle(), tokio::spawn(serve.into_future()))
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(f).await.unwrap()
}

async fn wait_for(what: &str, check: impl Fn() -> bool + Send + 'static) {
    let waited = blocking(move || eventually(TIMEOUT, || check().then_some(()))).await;
    waited.unwrap_or_else(|| panic!("timed out waiting until {what}"));
}
