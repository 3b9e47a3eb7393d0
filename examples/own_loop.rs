//! The layer in your own consumer loop, without the driver: `cargo run --example own_loop`.
//!
//! The numbered comments mark the changes to a loop around rdkafka's `StreamConsumer`. Use the same
//! rdkafka as Campanile (0.39); messages of another version have no `to_record`. The example needs
//! no server; `--broker HOST:PORT` and `--redis URL` work as for `quickstart`.
//!
//! Such a loop lacks what `campanile::Consumer` does:
//!
//! * It processes records of many partitions concurrently, each partition in order. Here each
//!   record waits for the previous one, so no calls are coalesced: each record pays the store's
//!   whole round trip.
//! * It waits without blocking other records. Here a key that is locked or backing off stops the
//!   whole loop, and after `max.poll.interval.ms` the group revokes its partitions. An unavailable
//!   store has the same effect.
//! * It drains before a rebalance and at a shutdown: running handlers may finish and are committed,
//!   and all other records are handed back without counting an attempt. Here a record dropped while
//!   it is processed counts as a failed attempt.
//! * It waits for the acknowledgment of dead letters before it commits anything, and supports retry
//!   topics.

use std::collections::HashMap;
use std::time::Duration;

use campanile::IdempotencyConfig;
use campanile::policy::OnExhausted;
use campanile::prelude::*;
use campanile::{Backoff, LockKeeper, Request, WaitForLock, handler, record::ToRecord};
use campanile_examples::{Environment, EventLog};
use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tower::{Service, ServiceBuilder, ServiceExt};

const PAYMENTS: usize = 60;

#[derive(Clone, Serialize, Deserialize)]
struct Payment {
    id: String,
    cents: u64,
}

/// The handler: charges a payment.
async fn charge(log: EventLog<Payment>, request: Request<Payment>) -> Result<(), BoxError> {
    let attempt = request.lock().map_or(0, LockHandle::attempt);
    let payment = request.into_body();
    // The terminal sometimes does not answer, and one card never works.
    if payment.cents % 10 == 7 && attempt == 1 || payment.cents == 13 {
        return Err("the card terminal does not answer".into());
    }
    log.push(payment);
    Ok(())
}

/// The stack between the loop and the handler.
fn stack(
    keeper: &LockKeeper,
    log: EventLog<Payment>,
) -> Result<impl Service<Record, Response = Outcome<()>, Error = BoxError>, BoxError> {
    // short, so that the example ends soon
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20))?;
    let config = IdempotencyConfig::new("payments").with_backoff(backoff);
    let layer = IdempotencyLayer::new(keeper, config, key::field(|p: &Payment| &p.id))?
        // without a driver, nothing publishes dead letters: the key is FAILED at once
        .on_exhausted(OnExhausted::GiveUp);
    Ok(ServiceBuilder::new()
        // +1: waits for the lock of another owner, and for the backoff after a failure. The wait
        //     must be shorter than `max.poll.interval.ms`, because the loop does not poll meanwhile
        .retry(WaitForLock::new(Duration::from_secs(60)).retrying_failures())
        // +2: records that fail to decode never acquire a lock
        .layer(DecodeLayer::json())
        // +3: one lock for each payment
        .layer(layer)
        // +4: a slow handler fails its attempt
        .timeout(Duration::from_secs(10))
        .service(handler(log, charge)))
}

/// Consumes this many messages.
async fn consume(
    consumer: &StreamConsumer,
    mut stack: impl Service<Record, Response = Outcome<()>, Error = BoxError>,
    messages: usize,
) -> Result<(u32, u32), BoxError> {
    let (mut duplicates, mut given_up) = (0, 0);
    for n in 1..=messages {
        let message = consumer.recv().await?;
        // +5: converts the message into a record. Before:
        // `charge(serde_json::from_slice(payload)?).await?`
        let record = message.to_record();
        // +6: repeat until this record is finished. The commit of a later offset would cover it
        let outcome = loop {
            match stack.ready().await?.call(record.clone()).await {
                Ok(outcome) => break outcome,
                // +7: react to the error
                Err(error) => handle_error(error).await?,
            }
        };
        match outcome {
            Outcome::Duplicate(_) => duplicates += 1,
            // Given up for good; the key's entry has the reason.
            Outcome::GivenUp(_) => given_up += 1,
            _ => {}
        }
        // +8: commit only after `Ok`, by hand. The last commit, and thus all of them, is waited for
        let mode = if n == messages { CommitMode::Sync } else { CommitMode::Async };
        consumer.commit_message(&message, mode)?;
    }
    Ok((duplicates, given_up))
}

/// Reacts to an error of the stack. Returns `Ok` if the loop should try the record again. Returns
/// the error if the loop should end with the record uncommitted; the record is then the first when
/// the program starts again.
async fn handle_error(error: BoxError) -> Result<(), BoxError> {
    match IdempotencyError::find(&*error) {
        // Another owner has the key, the key is backing off, or the attempt failed, for longer than
        // `WaitForLock` has waited. The error says when to try again.
        Some(own) if own.retry_after().is_some() => {
            sleep(own.retry_after().unwrap_or_default()).await;
            Ok(())
        }
        // The store is unavailable, or the lock was lost, which is not the record's fault.
        Some(IdempotencyError::Store(_) | IdempotencyError::LockLost(_)) => {
            sleep(Duration::from_secs(1)).await;
            Ok(())
        }
        // There is no key, or the key was used for another payload; the payload does not decode;
        // the handler requests a stop; or the keeper is shutting down. No attempt would fix that.
        // With `OnExhausted::ReturnLock`, keys without attempts left also end up here: call
        // `take_lock()`, publish the record, wait for the acknowledgment, `give_up` the lock, and
        // continue.
        _ => Err(error),
    }
}

/// Creates the same consumer as before, but with two more settings.
fn consumer(environment: &Environment) -> Result<StreamConsumer, BoxError> {
    let consumer: StreamConsumer = environment
        .client("payments")
        // +9, +10: only the loop commits offsets
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .create()?;
    consumer.subscribe(&[&*environment.topic])?;
    Ok(consumer)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let environment = Environment::from_args()?;
    let keeper = match &environment.redis {
        Some(url) => LockKeeper::new(RedisStore::connect(url.as_str()).await?)?,
        None => LockKeeper::new(MemoryStore::new())?,
    };
    // Every fourth payment is sent twice, as if its producer had retried.
    let sent: Vec<usize> = (0..PAYMENTS).chain((0..PAYMENTS).step_by(4)).collect();
    let payment =
        |&n: &usize| Payment { id: format!("{}/{n}", environment.topic), cents: n as u64 };
    environment.produce(sent.iter().map(payment), |payment| &payment.id)?;

    let log = EventLog::default();
    let half = sent.len() / 2;
    let mut totals = (0, 0);
    // The second loop continues where the first stopped.
    for messages in [half, sent.len() - half] {
        let stack = stack(&keeper, log.clone())?;
        let (duplicates, given_up) = consume(&consumer(&environment)?, stack, messages).await?;
        totals = (totals.0 + duplicates, totals.1 + given_up);
    }

    let mut charges: HashMap<String, u32> = HashMap::new();
    for payment in log.take() {
        *charges.entry(payment.id).or_default() += 1;
    }
    println!("records delivered                   {:>4}", sent.len());
    println!("payments charged                    {:>4}", charges.len());
    println!("duplicates answered from the entry  {:>4}", totals.0);
    println!("given up after eight attempts       {:>4}", totals.1);
    assert!(charges.values().all(|&times| times == 1), "some payments were charged twice");
    assert_eq!(charges.len(), PAYMENTS - 1, "not exactly the bad card's payment is missing");
    assert_eq!((totals.0, totals.1), (sent.len() as u32 - PAYMENTS as u32, 1));
    Ok(())
}
