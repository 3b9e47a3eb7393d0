//! Messages per second, each of which writes a row.

use std::ops::Range;

use campanile::postgres::tokio_postgres::{Client, NoTls, Statement, connect};
use campanile::postgres::{Inbox, Transaction};
use campanile::{BoxError, Clock, Guarded, IdempotencyLayer, Outcome, Record, Request};
use futures_util::future::try_join_all;
use tower::{Layer, ServiceExt};

use super::{ROUNDS, Stage};
use crate::guarded::{Message, numbered, process};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 16_000;
/// Number of concurrent messages, each with its own connection.
const AT_ONCE: u64 = 64;

const TABLES: &str = "
    CREATE TABLE booking (key text NOT NULL, cents bigint NOT NULL);
    CREATE TABLE seen (key text PRIMARY KEY)";
const BOOK: &str = "INSERT INTO booking VALUES ($1, 100)";
const SEE: &str = "INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING";

pub(super) fn run(report: &mut Report, stage: &Stage) -> Result<(), BoxError> {
    stage.postgres.psql(TABLES)?;
    let (mut ours, mut bare, mut by_hand) = (vec![], vec![], vec![]);
    let inbox =
        Inbox::new(&stage.store(&stage.postgres.url())?)?.with_connections(AT_ONCE as usize)?;
    // The first round warms up the connections and the server's memory, and does not count.
    for round in 0..=ROUNDS {
        let numbers = round * MESSAGES..(round + 1) * MESSAGES;
        let of_ours = stage.runtime.block_on(by_inbox(&inbox, numbers.clone()))?;
        let of_bare = stage.runtime.block_on(by_client(stage, numbers.clone(), &[BOOK]))?;
        let of_hand = stage.runtime.block_on(by_client(stage, numbers, &[SEE, BOOK]))?;
        stage.postgres.psql("VACUUM")?;
        if round > 0 {
            ours.push(of_ours);
            bare.push(of_bare);
            by_hand.push(of_hand);
        }
    }
    let mut row = |against, limit: &[f64], goal| {
        report.add(Row {
            area: "postgres",
            name: "inbox, a row each, 64 at once",
            unit: "messages/s",
            values: ours.clone(),
            against: Some((against, limit.to_vec())),
            goal,
        });
    };
    row("the same transaction alone", &bare, Some(Goal::AtLeast(0.8)));
    row("the same with a table of keys, by hand", &by_hand, None);
    Ok(())
}

async fn by_inbox(inbox: &Inbox, numbers: Range<u64>) -> Result<f64, BoxError> {
    let key = |request: &Request<u64>| numbered(*request.body());
    let layer = inbox.layer(IdempotencyLayer::new(inbox.keeper(), "inbox", key)?)?;
    let handler = tower::service_fn(async |request: Request<u64>| {
        let key = numbered(*request.body());
        Transaction::of(&request)?.execute(BOOK, &[&key]).await?;
        Ok::<_, BoxError>(())
    });
    let record = Record::builder("bookings", 0, 0).build();
    let service = layer
        .layer(handler)
        .map_request(move |message: Guarded<Message>| {
            Request::new(record.clone(), message.into_inner().0)
        })
        .map_result(|result| match result? {
            Outcome::Processed(()) => Ok(()),
            _ => Err(BoxError::from("a message was not processed")),
        });
    let messages = numbers.end - numbers.start;
    Ok(messages as f64 / process(service, numbers, AT_ONCE).await?.as_secs_f64())
}

/// Runs a transaction with these statements for each key. Each worker has its own connection.
async fn by_client(
    stage: &Stage,
    numbers: Range<u64>,
    statements: &'static [&'static str],
) -> Result<f64, BoxError> {
    let share = (numbers.end - numbers.start) / AT_ONCE;
    let mut workers = Vec::new();
    for worker in 0..AT_ONCE {
        let (client, connection) = connect(&stage.postgres.url(), NoTls).await?;
        tokio::spawn(connection);
        let mut prepared = Vec::new();
        for statement in statements {
            prepared.push(client.prepare(statement).await?);
        }
        let first = numbers.start + worker * share;
        workers.push((client, prepared, first..first + share));
    }
    let clock = Clock::boot();
    let start = clock.now();
    let running = workers
        .into_iter()
        .map(|(client, statements, numbers)| tokio::spawn(transact(client, statements, numbers)));
    for result in try_join_all(running).await? {
        result?;
    }
    Ok((share * AT_ONCE) as f64 / (clock.now() - start).as_secs_f64())
}

async fn transact(
    client: Client,
    statements: Vec<Statement>,
    numbers: Range<u64>,
) -> Result<(), BoxError> {
    for number in numbers {
        let key = numbered(number);
        client.batch_execute("BEGIN").await?;
        for statement in &statements {
            client.execute(statement, &[&key]).await?;
        }
        client.batch_execute("COMMIT").await?;
    }
    Ok(())
}
