//! Kafka to Kafka on a real broker: consumer processes are killed, suspended and fenced, and still
//! produce the output of each record once and in order, as seen by a reader with
//! `isolation.level=read_committed`.
//!
//! Each storm prints one line. `CAMPANILE_TRANSACTION_RECORDS` and `_KILLS` make the storms longer,
//! and `CAMPANILE_STORM_SEED` repeats the choices of an earlier run.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod aborts;
mod broker_outage;
#[path = "../support/group.rs"]
mod group;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/history.rs"]
mod history;
mod input;
#[path = "../support/invoices.rs"]
mod invoices;
#[path = "../support/length.rs"]
mod length;
mod overtaken;
mod positions;
mod process_faults;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/progress.rs"]
mod progress;
mod refused_outputs;
#[path = "../support/store.rs"]
mod store;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/worker.rs"]
mod worker;

use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use campanile_test::{KafkaServer, Message, Proxy, free_port};

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| {
    KafkaServer::builder()
        // The group soon notices dead members of the newer protocol, too.
        .property("group.consumer.session.timeout.ms", "5000")
        // A heartbeat that is not answered within its interval times out.
        .property("group.consumer.heartbeat.interval.ms", "1500")
        .start()
        .unwrap()
});

/// Starts a separate broker that is reachable only through the proxy.
fn start_behind_proxy() -> (KafkaServer, Proxy) {
    let port = free_port().unwrap();
    let proxy = Proxy::to((Ipv4Addr::LOCALHOST, port)).unwrap();
    let kafka = KafkaServer::builder()
        .port(port)
        .property("advertised.listeners", &format!("PLAINTEXT://{}", proxy.addr()))
        .property("transaction.abort.timed.out.transaction.cleanup.interval.ms", "200")
        // A heartbeat that takes longer than this ends the connection.
        .property("group.consumer.heartbeat.interval.ms", "2000")
        .start()
        .unwrap();
    (kafka, proxy)
}

const PARTITIONS: i32 = 8;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The topics of a test.
#[derive(Clone)]
struct Topics {
    payments: String,
    invoices: String,
}

impl Topics {
    fn create() -> Self {
        Self::create_on(&KAFKA)
    }

    fn create_on(kafka: &KafkaServer) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (payments, invoices) = (format!("payments-{number}"), format!("invoices-{number}"));
        for topic in [&payments, &invoices] {
            kafka.create_topic(topic, PARTITIONS, &[]).unwrap();
        }
        Self { payments, invoices }
    }

    /// Creates a payment of an account. An account's records are in one partition.
    fn payment(&self, account: usize, id: usize) -> Message {
        let message = Message::to(&self.payments).partition(account as i32 % PARTITIONS);
        message.key(format!("a-{account}")).payload(format!("p-{id}"))
    }
}
