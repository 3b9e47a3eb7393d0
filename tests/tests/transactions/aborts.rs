//! Why each abort is followed by a new producer.

use std::time::Duration;

use campanile_test::{KafkaServer, Proxy, eventually};
use rdkafka::message::OwnedMessage;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Message};

use crate::{TIMEOUT, invoices, start_behind_proxy};

type Client = ThreadedProducer<DefaultProducerContext>;

fn producer(proxy: &Proxy) -> Client {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", proxy.addr().to_string()).set("transactional.id", "billing-0");
    config.set("transaction.timeout.ms", "60000").set("message.timeout.ms", "40000");
    // Nothing is retried before the abort.
    config.set("retry.backoff.ms", "1000").set("retry.backoff.max.ms", "5000");
    let producer: Client = config.create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer
}

fn send(producer: &Client, names: [&str; 3]) {
    for name in names {
        let record = BaseRecord::<(), str>::to("invoices").partition(0).payload(name);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
}

/// Sends these messages in a transaction and commits it.
fn commit(producer: &Client, names: [&str; 3]) {
    producer.begin_transaction().unwrap();
    send(producer, names);
    producer.flush(TIMEOUT).unwrap();
    producer.commit_transaction(TIMEOUT).unwrap();
}

/// Reads the committed messages.
fn committed(kafka: &KafkaServer) -> Vec<String> {
    let messages = invoices::messages(kafka, "invoices", 1, "read_committed");
    let text = |message: &OwnedMessage| message.payload().unwrap().to_vec();
    messages.iter().map(|message| String::from_utf8(text(message)).unwrap()).collect()
}

/// librdkafka assigns the messages after an abort the sequence numbers of those it purged. Once the
/// first half of this test fails, `Worker` can keep its producer.
#[test]
fn messages_after_abort_are_kept_only_by_new_producer() {
    let (kafka, proxy) = start_behind_proxy();
    kafka.create_topic("invoices", 1, &[]).unwrap();
    let same = producer(&proxy);
    let abort_with_lost_reply = |producer: &Client| {
        producer.begin_transaction().unwrap();
        // The broker knows the partition as part of the transaction.
        send(producer, ["-", "-", "-"]);
        producer.flush(TIMEOUT).unwrap();
        // The broker accepts these messages, but its reply is lost.
        let before = proxy.swallowed();
        proxy.swallow_replies();
        send(producer, ["-", "-", "-"]);
        let answered = || (proxy.swallowed() > before).then_some(());
        eventually(TIMEOUT, answered).expect("a reply is swallowed");
        std::thread::sleep(Duration::from_millis(300));
        proxy.heal().unwrap();
        producer.abort_transaction(TIMEOUT).unwrap();
    };
    abort_with_lost_reply(&same);
    commit(&same, ["lost-0", "lost-1", "lost-2"]);
    abort_with_lost_reply(&same);
    let another = producer(&proxy);
    commit(&another, ["kept-0", "kept-1", "kept-2"]);
    let kept = || (committed(&kafka).len() >= 3).then_some(());
    eventually(TIMEOUT, kept).expect("the other producer's messages are kept");
    assert_eq!(committed(&kafka), ["kept-0", "kept-1", "kept-2"]);
}
