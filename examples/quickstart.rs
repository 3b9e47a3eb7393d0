//! Charges every payment once: `cargo run --example quickstart`.
//!
//! The example needs no server: librdkafka's mock broker and a `MemoryStore` run in this process.
//! With `--broker HOST:PORT` and `--redis URL` (or `CAMPANILE_BROKERS` and `CAMPANILE_REDIS`, as
//! printed by `cargo xtask servers`), the same program runs on real servers.

use std::collections::HashMap;
use std::time::Duration;

use campanile::prelude::*;
use campanile::{Consumer, LockKeeper, Request, consumer::Summary, handler};
use campanile_examples::{Environment, EventLog};
use serde::{Deserialize, Serialize};
use tower::{Service, ServiceBuilder};

const PAYMENTS: usize = 200;

#[derive(Clone, Serialize, Deserialize)]
struct Payment {
    id: String,
    cents: u64,
}

/// An event, recorded by the handler and not by the library.
enum Event {
    Begun(String, u32),
    Failed,
    Charged(String),
    Answered { duplicate: bool },
}

/// The stack that processes each record.
fn stack(
    store: LockKeeper,
    log: EventLog<Event>,
) -> Result<
    impl Service<Record, Response = Outcome<()>, Error = BoxError, Future: Send> + Clone,
    BoxError,
> {
    Ok(ServiceBuilder::new()
        // records that fail to decode never acquire a lock
        .layer(DecodeLayer::json())
        // one lock for each payment, renewed while the handler runs
        .layer(IdempotencyLayer::new(store, "payments", key::field(|p: &Payment| &p.id))?)
        // a slow handler fails its attempt
        .timeout(Duration::from_secs(10))
        .service(handler(log, charge)))
}

/// The handler: charges a payment.
async fn charge(log: EventLog<Event>, request: Request<Payment>) -> Result<(), BoxError> {
    let Payment { id, cents } = request.body().clone();
    let attempt = request.lock().map_or(0, LockHandle::attempt);
    log.push(Event::Begun(id.clone(), attempt));
    // Some payments fail on their first attempt.
    if cents % 50 == 7 && attempt == 1 {
        log.push(Event::Failed);
        return Err("the card terminal does not answer".into());
    }
    tokio::time::sleep(Duration::from_millis(10 + cents % 20)).await;
    // The charge is the last step. A later step could fail or be interrupted after the charge, and
    // the next attempt would charge again. No lock closes that window; a receiver that deduplicates
    // by the key or compares the token does.
    log.push(Event::Charged(id));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let environment = Environment::from_args()?;
    let keeper = match &environment.redis {
        Some(url) => LockKeeper::new(RedisStore::connect(url.as_str()).await?)?,
        None => LockKeeper::new(MemoryStore::new())?,
    };

    // Every tenth payment is sent twice, as if its producer had retried.
    let sent: Vec<usize> = (0..PAYMENTS).chain((0..PAYMENTS).step_by(10)).collect();
    let payment =
        |&n: &usize| Payment { id: format!("{}/{n}", environment.topic), cents: n as u64 };
    environment.produce(sent.iter().map(payment), |payment| &payment.id)?;

    let log = EventLog::default();
    println!("consuming until half of the payments are charged");
    let half = log.wait_for(PAYMENTS / 2, |event| matches!(event, Event::Charged(_)));
    let first = consume(&environment, &keeper, &log, half).await?;
    println!("stopped while handlers were running; starting again");
    let charged = log.wait_for(PAYMENTS, |event| matches!(event, Event::Charged(_)));
    let answered = log.wait_for(sent.len(), |event| matches!(event, Event::Answered { .. }));
    let all = async {
        tokio::join!(charged, answered);
    };
    let second = consume(&environment, &keeper, &log, all).await?;
    print_summary(&log, first.received + second.received)
}

/// Serves until `stop` completes. Without time to drain, the handlers that are still running are
/// dropped.
async fn consume(
    environment: &Environment,
    keeper: &LockKeeper,
    log: &EventLog<Event>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Summary, BoxError> {
    let answers = log.clone();
    let service = ServiceBuilder::new()
        // records what the layer answered
        .map_response(move |outcome: Outcome<()>| {
            let duplicate = outcome.is_duplicate();
            answers.push(Event::Answered { duplicate });
        })
        .service(stack(keeper.clone(), log.clone())?);
    let consumer =
        Consumer::new(environment.consumer("payments"))?.with_drain_timeout(Duration::ZERO);
    let serve = consumer.subscribe([&*environment.topic]).serve(service);
    Ok(serve.with_graceful_shutdown(stop).await?)
}

fn print_summary(log: &EventLog<Event>, delivered: u64) -> Result<(), BoxError> {
    // For each payment: how often the handler began, its last attempt, how often it charged.
    let mut payments: HashMap<String, (u32, u32, u32)> = HashMap::new();
    let (mut duplicates, mut failures) = (0, 0);
    for event in log.take() {
        match event {
            Event::Begun(id, attempt) => {
                let payment = payments.entry(id).or_default();
                (payment.0, payment.1) = (payment.0 + 1, attempt);
            }
            Event::Charged(id) => payments.entry(id).or_default().2 += 1,
            Event::Failed => failures += 1,
            Event::Answered { duplicate } => duplicates += u32::from(duplicate),
        }
    }
    let charged = payments.values().filter(|payment| payment.2 > 0).count();
    let missing = PAYMENTS - charged;
    let twice = payments.values().filter(|payment| payment.2 > 1).count();
    // If the handler began more often than attempts are counted, attempts were handed back.
    let handed_back: u32 = payments.values().map(|payment| payment.0 - payment.1).sum();
    println!("records delivered                        {delivered:>5}");
    println!("payments charged                         {charged:>5}");
    println!("duplicates answered from the entry       {duplicates:>5}");
    println!("retries after a failure                  {failures:>5}");
    println!("interrupted and handed back at the stop  {handed_back:>5}");
    println!("payments charged twice                   {twice:>5}");
    println!("payments not charged                     {missing:>5}");
    if twice > 0 || missing > 0 {
        return Err("some payments were charged twice, or not at all".into());
    }
    Ok(())
}
