//! Postgres to Kafka and onward, on real servers: handlers publish messages through the outbox, and
//! a consumer uses the messages' header as its key.
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::postgres::{Inbox, Transaction, migrate};
use campanile::prelude::*;
use campanile::{Consumer, Output, PgStore, Publisher, Request};
use campanile_test::{KafkaServer, Message, PgServer};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tower::{Service, ServiceBuilder, service_fn};

const PAYMENTS: usize = 200;
const ACCOUNTS: usize = 7;
const PARTITIONS: i32 = 4;
const CRASHES: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, serde::Deserialize)]
struct Payment {
    account: String,
    number: usize,
}

/// Publishes two bills for each payment.
async fn pay(request: Request<Payment>) -> Result<(), BoxError> {
    let Payment { account, number } = request.body();
    let transaction = Transaction::from_request(&request)?;
    for part in ["net", "tax"] {
        let bill =
            Output::to("bills").key(account.to_owned()).payload(format!("\"{number} {part}\""));
        transaction.publish(bill).await?;
    }
    Ok(())
}

/// The bills booked by the consumer, by account.
type Booked = Arc<Mutex<HashMap<String, Vec<String>>>>;

async fn book(booked: Booked, request: Request<String>) -> Result<(), BoxError> {
    let account = String::from_utf8(request.record().key().ok_or("no account")?.to_vec())?;
    booked.lock().unwrap().entry(account).or_default().push(request.body().clone());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outbox_header_as_key_gives_one_effect_per_message_in_order() {
    let kafka = KafkaServer::start().unwrap();
    kafka.create_topic("payments", PARTITIONS, &[]).unwrap();
    kafka.create_topic("bills", PARTITIONS, &[]).unwrap();
    let postgres = PgServer::start().unwrap();
    migrate(postgres.url()).await.unwrap();
    let inbox = Inbox::new(&PgStore::connect(postgres.url()).await.unwrap()).unwrap();
    let (stop, stopped) = watch::channel(false);
    let stopped = || {
        let mut stopped = stopped.clone();
        async move { drop(stopped.wait_for(|stopped| *stopped).await) }
    };

    let payments = IdempotencyLayer::new(inbox.keeper(), "payments", key::header("id")).unwrap();
    let paying = Consumer::new(kafka.consumer_config("paying")).unwrap().subscribe(["payments"]);
    let paying = paying.serve(
        ServiceBuilder::new()
            .layer(DecodeLayer::json())
            .layer(inbox.layer(payments).unwrap())
            .service_fn(pay),
    );
    let paying = tokio::spawn(paying.with_graceful_shutdown(stopped()).into_future());

    let (booked, duplicates) = (Booked::default(), Arc::new(AtomicUsize::new(0)));
    let bills = IdempotencyLayer::new(MemoryStore::new(), "bills", key::header(key::HEADER));
    let (to, counted) = (booked.clone(), duplicates.clone());
    let booking = Consumer::new(kafka.consumer_config("booking")).unwrap().subscribe(["bills"]);
    let booking = booking.serve(
        ServiceBuilder::new()
            .map_response(move |outcome: Outcome<()>| {
                counted.fetch_add(outcome.is_duplicate().into(), Ordering::Relaxed);
            })
            .layer(DecodeLayer::json())
            .layer(bills.unwrap())
            .service_fn(move |request| book(to.clone(), request)),
    );
    let booking = tokio::spawn(booking.with_graceful_shutdown(stopped()).into_future());

    // One payment in ten is sent twice.
    let payment = |number: usize| {
        let account = number % ACCOUNTS;
        Message::to("payments")
            .partition(account as i32 % PARTITIONS)
            .header("id", format!("p-{number}"))
            .payload(format!(r#"{{"account":"account-{account}","number":{number}}}"#))
    };
    let twice = (0..PAYMENTS).flat_map(|number| vec![number; 1 + usize::from(number % 10 == 0)]);
    kafka.producer().produce_all(twice.map(payment)).unwrap();

    let publisher = Publisher::new(kafka.bootstrap()).unwrap();
    for crash in 1..=CRASHES {
        let (crashed, acknowledged) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (crash_signal, publisher) = (crashed.clone(), publisher.clone());
        let crashing_publisher = service_fn(move |output| {
            let (crash_signal, acknowledged, mut publisher) =
                (crash_signal.clone(), acknowledged.clone(), publisher.clone());
            async move {
                publisher.call(output).await?;
                if acknowledged.fetch_add(1, Ordering::Relaxed) == 10 * crash {
                    // The brokers have the message, but the relay does not learn of it.
                    crash_signal.notify_one();
                    pending::<()>().await;
                }
                Ok::<_, BoxError>(())
            }
        });
        let relay = tokio::spawn(inbox.relay(crashing_publisher, pending()));
        timeout(TIMEOUT, crashed.notified()).await.unwrap();
        relay.abort();
    }
    let relay = tokio::spawn(inbox.relay(publisher, stopped()));
    wait_until(|| {
        let has_duplicates = duplicates.load(Ordering::Relaxed) >= CRASHES;
        has_duplicates && booked_count(&booked) == 2 * PAYMENTS && outbox_len(&postgres) == 0
    })
    .await;
    stop.send_replace(true);
    relay.await.unwrap();
    paying.await.unwrap().unwrap();
    booking.await.unwrap().unwrap();

    for account in 0..ACCOUNTS {
        let numbers = (account..PAYMENTS).step_by(ACCOUNTS);
        let expected: Vec<_> = numbers
            .flat_map(|number| ["net", "tax"].map(|part| format!("{number} {part}")))
            .collect();
        assert_eq!(booked.lock().unwrap()[&format!("account-{account}")], expected, "{account}");
    }
}

fn booked_count(booked: &Booked) -> usize {
    booked.lock().unwrap().values().map(Vec::len).sum()
}

fn outbox_len(postgres: &PgServer) -> usize {
    postgres.psql("SELECT count(*) FROM campanile.outbox").unwrap().parse().unwrap()
}

async fn wait_until(condition: impl Fn() -> bool) {
    let condition_met = async {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, condition_met).await.unwrap();
}
