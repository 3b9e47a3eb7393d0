//! Kafka to Kafka on a real broker: consumer processes that are killed, stopped and fenced give out what
//! belongs to each record once, in its order, as a reader with `isolation.level=read_committed` sees it.
//!
//! Each storm prints one line. `CAMPANILE_TRANSACTION_RECORDS` and `_KILLS` make them longer, and
//! `CAMPANILE_STORM_SEED` repeats the choices of one.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod aborts;
mod away;
#[path = "../support/group.rs"]
mod group;
mod input;
mod invoices;
mod positions;
mod refused;
mod storm;

use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use campanile_test::{KafkaServer, Message, Proxy, free_port};

/// Shared: it takes some seconds to start. A `static` is never dropped; its process ends with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| {
    // Members of the newer protocol are soon missed, too.
    let builder = KafkaServer::builder().property("group.consumer.session.timeout.ms", "2000");
    builder.start().unwrap()
});

/// A broker of a test's own, which is reached through the proxy alone.
fn behind_a_proxy() -> (KafkaServer, Proxy) {
    let port = free_port().unwrap();
    let proxy = Proxy::to((Ipv4Addr::LOCALHOST, port)).unwrap();
    let kafka = KafkaServer::builder()
        .port(port)
        .property("advertised.listeners", &format!("PLAINTEXT://{}", proxy.addr()))
        .property("transaction.abort.timed.out.transaction.cleanup.interval.ms", "200")
        .start()
        .unwrap();
    (kafka, proxy)
}

const PARTITIONS: i32 = 8;
const LONG: Duration = Duration::from_secs(120);

/// The topics of one test.
#[derive(Clone)]
struct Topics {
    payments: String,
    invoices: String,
}

impl Topics {
    fn create() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (payments, invoices) = (format!("payments-{number}"), format!("invoices-{number}"));
        for topic in [&payments, &invoices] {
            KAFKA.create_topic(topic, PARTITIONS, &[]).unwrap();
        }
        Self { payments, invoices }
    }

    /// The payment of an account, whose records are in one partition.
    fn payment(&self, account: usize, id: usize) -> Message {
        let message = Message::to(&self.payments).partition(account as i32 % PARTITIONS);
        message.key(format!("a-{account}")).payload(format!("p-{id}"))
    }
}
