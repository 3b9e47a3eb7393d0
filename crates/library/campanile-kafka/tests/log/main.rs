//! Repeated log lines. A separate binary with a single test, because librdkafka logs from threads of
//! its own, so the subscriber must be that of the whole process.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[allow(dead_code, reason = "shared with the other binary, which needs all of it")]
#[path = "../kafka/support.rs"]
mod support;

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use campanile_core::{BoxError, Record};
use campanile_kafka::{Consumer, ConsumerConfig};
use tower::service_fn;

use support::until;

/// The lines that were logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl io::Write for Lines {
    /// The subscriber writes each line at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().push(String::from_utf8_lossy(line).trim_end().to_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a port that closes each connection at once, and counts the connections.
fn closing_address() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let connections = count.clone();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            drop(connection);
            connections.fetch_add(1, Ordering::SeqCst);
        }
    });
    (address, count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_broker_is_logged_once_per_start_and_cause() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_writer(move || writer.clone());
    subscriber.init();
    let (address, connections) = closing_address();
    const STARTS: usize = 4;
    for start in 1..=STARTS {
        let config = ConsumerConfig::new(&*address, "g")
            .set("reconnect.backoff.ms", "10")
            .set("reconnect.backoff.max.ms", "20");
        let service = service_fn(async |_: Record| Ok::<_, BoxError>(()));
        let serve = Consumer::new(config).unwrap().subscribe(["orders"]).serve(service);
        let handle = serve.handle();
        let serving = tokio::spawn(serve.into_future());
        // librdkafka reports each of these connections.
        until("librdkafka has reconnected", || connections.load(Ordering::SeqCst) >= 20 * start)
            .await;
        handle.shutdown();
        serving.await.unwrap().unwrap();
    }
    let lines = lines.0.lock().unwrap().clone();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for line in &lines {
        *counts.entry(line.split(" (").next().unwrap()).or_default() += 1;
    }
    assert!(counts.values().all(|count| *count <= STARTS), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("librdkafka")), "{lines:#?}");
    assert!(lines.len() <= 5 * STARTS, "{lines:#?}");
}
