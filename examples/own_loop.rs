//! The layer in a loop of one's own, without the driver: `cargo run --example own_loop`.
//!
//! What changes in a loop around rdkafka's `StreamConsumer` is marked; it must be the rdkafka that
//! Campanile is built with (0.39), else its messages have no `to_record`. Needs no server;
//! `--broker HOST:PORT` and `--redis URL` as for `quickstart`.
//!
//! What such a loop does not do, and `campanile::Consumer` does:
//!
//! * Records of many partitions at a time, in the order of each. Here one record waits for the other,
//!   so that nothing is coalesced: each pays the store's whole round trip.
//! * Waiting without being in the way. Here a key that is locked or backs off stops the whole loop, and
//!   after `max.poll.interval.ms` the group takes its partitions away; so does a store that is away.
//! * A drain before a rebalance and at a shutdown: what is at work may end and is committed, the rest is
//!   handed back without counting an attempt. Here a drop in the middle counts as a failed attempt.
//! * Dead letters that are acknowledged before anything is committed, and retry topics.

use std::collections::HashMap;
use std::time::Duration;

use campanile::policy::OnGivenUp;
use campanile::prelude::*;
use campanile::store::Store;
use campanile::{Backoff, LockKeeper, ToRecord, WaitForLock};
use campanile_examples::{Ledger, World};
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
async fn charge(request: Request<Payment>, ledger: Ledger<Payment>) -> Result<(), BoxError> {
    let attempt = request.lock().map_or(0, Lock::attempt);
    let payment = request.into_body();
    // The terminal is not always there, and one card was never good.
    if payment.cents % 10 == 7 && attempt == 1 || payment.cents == 13 {
        return Err("the card terminal does not answer".into());
    }
    ledger.note(payment);
    Ok(())
}

/// What stands between the loop and the handler.
fn stack(
    keeper: &LockKeeper,
    ledger: Ledger<Payment>,
) -> Result<impl Service<Record, Response = Outcome<()>, Error = BoxError>, BoxError> {
    let layer = IdempotencyLayer::new(keeper, "payments", key::field(|p: &Payment| &p.id))?
        // without a driver nobody publishes dead letters: the key is FAILED at once
        .with_given_up(OnGivenUp::Reject)
        // short, for this example must end
        .with_backoff(Backoff::new(Duration::from_millis(1), Duration::from_millis(20))?);
    Ok(ServiceBuilder::new()
        // +1: waits for whoever holds the key, and for the back-off after a failure. Not for as long as
        //     `max.poll.interval.ms`, for the loop does not poll meanwhile
        .retry(WaitForLock::new(Duration::from_secs(60)).and_failures())
        // +2: what does not decode never takes a lock
        .layer(DecodeLayer::json())
        // +3: one lock for each payment
        .layer(layer)
        // +4: a slow handler fails its attempt
        .timeout(Duration::from_secs(10))
        .service_fn(move |request| charge(request, ledger.clone())))
}

/// The loop, for so many messages.
async fn consume(
    consumer: &StreamConsumer,
    mut stack: impl Service<Record, Response = Outcome<()>, Error = BoxError>,
    messages: usize,
) -> Result<(u32, u32), BoxError> {
    let (mut duplicates, mut parked) = (0, 0);
    for n in 1..=messages {
        let message = consumer.recv().await?;
        // +5: the message as a record. It was: `charge(serde_json::from_slice(payload)?).await?`
        let record = message.to_record();
        // +6: until this record is finished. A later offset's commit would cover it
        let outcome = loop {
            match stack.ready().await?.call(record.clone()).await {
                Ok(outcome) => break outcome,
                // +7: what follows, by the error
                Err(error) => what_follows(error).await?,
            }
        };
        match outcome {
            Outcome::Duplicate(_) => duplicates += 1,
            // Given up for good; whoever looks after it finds the reason in the key's entry.
            Outcome::Parked(_) => parked += 1,
            _ => {}
        }
        // +8: only after `Ok`, by hand. The last one is waited for, and so are those before it
        let mode = if n == messages { CommitMode::Sync } else { CommitMode::Async };
        consumer.commit_message(&message, mode)?;
    }
    Ok((duplicates, parked))
}

/// What an error of the stack means for the loop: `Ok` to try the record again, and else the end, with
/// the record not committed, so that it is the first when the program starts again.
async fn what_follows(error: BoxError) -> Result<(), BoxError> {
    match IdempotencyError::find(&*error) {
        // Somebody else holds the key, its back-off runs, or the attempt failed, for longer than
        // `WaitForLock` has waited. It says when to come back.
        Some(own) if own.retry_after().is_some() => {
            sleep(own.retry_after().unwrap_or_default()).await;
            Ok(())
        }
        // The store is away, or the lock was lost: that says nothing about the record.
        Some(IdempotencyError::Store(_) | IdempotencyError::LockLost(_)) => {
            sleep(Duration::from_secs(1)).await;
            Ok(())
        }
        // There is no key, or it was used for another payload; the payload does not decode; the handler
        // says stop; the keeper is shutting down. No attempt would mend that. With
        // `OnGivenUp::HandOver` also what has no attempt left: `take_lock()`, publish the record, wait
        // for the acknowledgement, then `reject` the lock, and go on.
        _ => Err(error),
    }
}

/// The consumer as it was, but for two settings.
fn consumer(world: &World) -> Result<StreamConsumer, BoxError> {
    let consumer: StreamConsumer = world
        .client("payments")
        // +9, +10: offsets are committed by the loop alone
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .create()?;
    consumer.subscribe(&[&*world.topic])?;
    Ok(consumer)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let world = World::from_args()?;
    let keeper = LockKeeper::new(match &world.redis {
        Some(url) => RedisStore::connect(url.as_str()).await?.boxed(),
        None => MemoryStore::new().boxed(),
    })?;
    // Every fourth payment is sent twice: a producer's retry.
    let sent: Vec<usize> = (0..PAYMENTS).chain((0..PAYMENTS).step_by(4)).collect();
    let payment = |&n: &usize| Payment { id: format!("{}/{n}", world.topic), cents: n as u64 };
    world.produce(sent.iter().map(payment), |payment| &payment.id)?;

    let ledger = Ledger::default();
    let half = sent.len() / 2;
    let mut totals = (0, 0);
    // The second loop goes on where the first has stopped.
    for messages in [half, sent.len() - half] {
        let stack = stack(&keeper, ledger.clone())?;
        let (duplicates, parked) = consume(&consumer(&world)?, stack, messages).await?;
        totals = (totals.0 + duplicates, totals.1 + parked);
    }

    let mut charges: HashMap<String, u32> = HashMap::new();
    for payment in ledger.take() {
        *charges.entry(payment.id).or_default() += 1;
    }
    println!("records delivered                   {:>4}", sent.len());
    println!("payments charged                    {:>4}", charges.len());
    println!("duplicates answered from the entry  {:>4}", totals.0);
    println!("given up after eight attempts       {:>4}", totals.1);
    assert!(charges.values().all(|&times| times == 1), "some payments were charged twice");
    assert_eq!(charges.len(), PAYMENTS - 1, "all but the bad card's");
    assert_eq!((totals.0, totals.1), (sent.len() as u32 - PAYMENTS as u32, 1));
    Ok(())
}
