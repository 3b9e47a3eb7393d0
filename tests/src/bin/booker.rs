//! A consumer process for tests that kill it: books records of the form
//! `{"id":"b-1","account":3,"cents":5}` in a Postgres ledger, using the transactional inbox.
//! Arguments: brokers, group, topic, Postgres URL, folder of the history, then options: `lock_ms=2000`,
//! `slow_ms=0` for one booking in 61, `timeout_ms=60000` for a booking, `process=NAME`, and settings of librdkafka such as
//! `session.timeout.ms=3000`.
//!
//! A booking consists of two writes: a row of the ledger, which names its run and which no constraint
//! protects against duplicates, and the balance of its account. The process is called `booker-PID` in
//! the history, unless it is named.

use std::time::Duration;

use campanile::IdempotencyConfig;
use campanile::postgres::{Inbox, Transaction};
use campanile::prelude::*;
use campanile::{Consumer, PgConfig, PgStore, Request, consumer::Summary};
use campanile_test::history::HistoryRecorder;
use campanile_tests::{START_TIMEOUT, log_events, probe_liveness};
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceBuilder;

#[derive(Clone, serde::Deserialize)]
struct Booking {
    id: String,
    account: i32,
    cents: i64,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Installed first, because the process may be stopped at any time.
    let mut terminated = signal(SignalKind::terminate())?;
    log_events();
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = arguments.split_off(arguments.len().min(5));
    let arguments: Result<[String; 5], _> = arguments.try_into();
    let [brokers, group, topic, postgres, folder] =
        arguments.map_err(|given| format!("expected five arguments, got {given:?}"))?;
    let mut process = format!("booker-{}", std::process::id());
    // Expires soon after this process is killed.
    let mut lock = Duration::from_secs(2);
    let mut slow = Duration::ZERO;
    let mut timeout = Duration::from_secs(60);
    let mut config = ConsumerConfig::new(brokers, group).set("auto.offset.reset", "earliest");
    for option in options {
        match option.split_once('=').ok_or("options have the form NAME=VALUE")? {
            ("lock_ms", value) => lock = Duration::from_millis(value.parse()?),
            ("slow_ms", value) => slow = Duration::from_millis(value.parse()?),
            ("timeout_ms", value) => timeout = Duration::from_millis(value.parse()?),
            ("process", value) => process = value.into(),
            (name, value) => config = config.set(name, value),
        }
    }
    let probed = process.clone();
    let history = HistoryRecorder::create(&folder, &*process, None)?;

    let store = PgConfig::new(postgres).with_connect_timeout(START_TIMEOUT);
    let inbox = Inbox::new(&PgStore::connect(store).await?)?;
    let idempotency = IdempotencyConfig::new("ledger")
        .with_lock_ttl(lock)
        // Enough for a key that the kills hit again and again.
        .with_max_attempts(1_000);
    let bookings =
        IdempotencyLayer::new(inbox.keeper(), idempotency, key::field(|b: &Booking| &b.id))?;
    let runs = history.clone();
    let service = ServiceBuilder::new()
        // Records the answers.
        .layer(history.answers())
        // Records that do not decode never acquire a lock.
        .layer(DecodeLayer::json())
        // A lock per booking, which is committed together with its completion.
        .layer(inbox.layer(bookings)?)
        // Records the runs, each in a transaction of its own.
        .layer(history.runs())
        // A statement waits for its answer for as long as its connection seems to be open.
        .timeout(timeout)
        .service_fn(move |request| book(request, process.clone(), runs.clone(), slow));
    let serve =
        Consumer::new(config)?.subscribe([topic]).with_start_timeout(START_TIMEOUT).serve(service);
    probe_liveness(serve.handle(), &folder, &probed);
    let summary: Summary = serve
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;
    println!("{summary:?}");
    Ok(())
}

async fn book(
    request: Request<Booking>,
    process: String,
    history: HistoryRecorder,
    slow: Duration,
) -> Result<(), BoxError> {
    let Booking { id, account, cents } = request.body();
    let run = history.run_number(&request).ok_or("the run is not recorded")?.cast_signed();
    let transaction = Transaction::from_request(&request)?;
    transaction
        .execute(
            "INSERT INTO ledger (id, account, cents, process, run) VALUES ($1, $2, $3, $4, $5)",
            &[id, account, cents, &process, &run],
        )
        .await?;
    // Some bookings take longer, so that kills hit them halfway.
    if cents % 4 == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if cents % 61 == 0 {
        tokio::time::sleep(slow).await;
    }
    transaction
        .execute("UPDATE account SET balance = balance + $2 WHERE id = $1", &[account, cents])
        .await?;
    Ok(())
}
