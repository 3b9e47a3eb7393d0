//! Input records that were themselves produced in transactions.

use campanile::prelude::*;
use campanile::{Consumer, Output, Outputs, Transactions};
use campanile_test::eventually;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tokio::sync::oneshot;

use crate::{KAFKA, TIMEOUT, Topics, invoices};

/// Number of records in each transaction.
const RECORDS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_input_is_not_billed_and_markers_block_nothing() {
    let topics = tokio::task::spawn_blocking(|| {
        let topics = Topics::create();
        // The last transaction's markers are at the end of the partition.
        produce(&topics.payments, &[true, false, true, false]);
        topics
    });
    let topics = topics.await.unwrap();
    let to = topics.invoices.clone();
    let service = tower::service_fn(move |record: Record| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let place = format!("{}@{}", record.partition(), record.offset());
        let id = text(record.payload().unwrap());
        let output = Output::to(to.clone()).key("a").payload(format!("{id} {place}"));
        async move { Ok::<_, BoxError>(Outputs::of(&record).with(output)) }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = Consumer::new(KAFKA.consumer_config("input"))
        .unwrap()
        .subscribe([topics.payments.clone()])
        .serve_transactional(service, Transactions::new("input"))
        .with_graceful_shutdown(async { stopped.await.unwrap_or_default() });
    let handle = serve.handle();
    let serving = tokio::spawn(serve.into_future());
    // Behind the last delivered record are its marker, and the last transaction with its own
    // marker.
    let behind = (RECORDS + 2) as u64;
    let done = tokio::task::spawn_blocking(move || {
        let lag = || handle.status().partitions.iter().find(|p| p.partition == 0)?.lag;
        eventually(TIMEOUT, || lag().filter(|lag| *lag == behind))
    });
    assert_eq!(done.await.unwrap(), Some(behind));
    stop.send(()).unwrap();
    assert_eq!(serving.await.unwrap().unwrap().processed, 2 * RECORDS as u64);
    let billed = tokio::task::spawn_blocking(move || {
        invoices::read(&KAFKA, &topics.invoices, "read_committed")
    });
    let ids: Vec<String> = billed.await.unwrap().into_iter().map(|invoice| invoice.id).collect();
    let expected = (0..RECORDS).chain(2 * RECORDS..3 * RECORDS).map(|id| format!("p-{id}"));
    assert_eq!(ids, expected.collect::<Vec<_>>());
}

/// Produces several transactions one after the other, some of which are committed.
fn produce(topic: &str, commits: &[bool]) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", KAFKA.bootstrap()).set("transactional.id", "payer");
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    for (number, commits) in commits.iter().enumerate() {
        producer.begin_transaction().unwrap();
        for id in number * RECORDS..(number + 1) * RECORDS {
            let payload = format!("p-{id}");
            let record = BaseRecord::<(), str>::to(topic).partition(0).payload(&payload);
            producer.send(record).unwrap();
        }
        if *commits {
            producer.commit_transaction(TIMEOUT).unwrap();
        } else {
            producer.flush(TIMEOUT).unwrap();
            producer.abort_transaction(TIMEOUT).unwrap();
        }
    }
}
