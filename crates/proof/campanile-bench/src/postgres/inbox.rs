//! Messages per second, each of which writes a row.

use std::ops::Range;

use campanile::postgres::tokio_postgres::{Client, NoTls, Statement, connect};
use campanile::postgres::{Inbox, Transaction};
use campanile::{
    BoxError, IdempotencyLayer, Outcome, PgConfig, PgStore, Record, Request, WithLock, lock::Clock,
};
use futures_util::future::try_join_all;
use tower::{Layer, ServiceExt};

use super::{Environment, ROUNDS};
use crate::handlers::{Message, numbered_key, process};
use crate::report::{Goal, Report, Row};

const MESSAGES: u64 = 16_000;
/// Number of concurrent messages, each with its own connection.
const IN_FLIGHT: u64 = 64;

const CREATE_TABLES: &str = "
    CREATE TABLE booking (key text NOT NULL, cents bigint NOT NULL);
    CREATE TABLE seen (key text PRIMARY KEY)";
const INSERT_BOOKING: &str = "INSERT INTO booking VALUES ($1, 100)";
const INSERT_SEEN: &str = "INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING";

pub(super) fn run(report: &mut Report, env: &Environment) -> Result<(), BoxError> {
    env.postgres.psql(CREATE_TABLES)?;
    let (mut candidate, mut bare, mut baseline) = (vec![], vec![], vec![]);
    let config = PgConfig::new(env.postgres.url()).with_inbox_connections(IN_FLIGHT as usize);
    let inbox = Inbox::new(&env.runtime.block_on(PgStore::connect(config))?)?;
    // The first round warms up the connections and the server's memory, and does not count.
    for round in 0..=ROUNDS {
        let numbers = round * MESSAGES..(round + 1) * MESSAGES;
        let inbox_rate = env.runtime.block_on(run_inbox(&inbox, numbers.clone()))?;
        let bare_rate =
            env.runtime.block_on(run_client(env, numbers.clone(), &[INSERT_BOOKING]))?;
        let baseline_rate =
            env.runtime.block_on(run_client(env, numbers, &[INSERT_SEEN, INSERT_BOOKING]))?;
        env.postgres.psql("VACUUM")?;
        if round > 0 {
            candidate.push(inbox_rate);
            bare.push(bare_rate);
            baseline.push(baseline_rate);
        }
    }
    let mut row = |reference, limit: &[f64], goal| {
        report.add(Row {
            area: "postgres",
            name: "inbox, a row each, 64 at once",
            unit: "messages/s",
            values: candidate.clone(),
            reference: Some((reference, limit.to_vec())),
            goal,
        });
    };
    row("the same transaction alone", &bare, Some(Goal::AtLeast(0.8)));
    row("the same with a table of keys, by hand", &baseline, None);
    Ok(())
}

async fn run_inbox(inbox: &Inbox, numbers: Range<u64>) -> Result<f64, BoxError> {
    let key = |request: &Request<u64>| numbered_key(*request.body());
    let layer = inbox.layer(IdempotencyLayer::new(inbox.keeper(), "inbox", key)?)?;
    let handler = tower::service_fn(async |request: Request<u64>| {
        let key = numbered_key(*request.body());
        Transaction::from_request(&request)?.execute(INSERT_BOOKING, &[&key]).await?;
        Ok::<_, BoxError>(())
    });
    let record = Record::builder("bookings", 0, 0).build();
    let service = layer
        .layer(handler)
        .map_request(move |message: WithLock<Message>| {
            Request::new(record.clone(), message.into_inner().0)
        })
        .map_result(|result| match result? {
            Outcome::Processed(()) => Ok(()),
            _ => Err(BoxError::from("a message was not processed")),
        });
    let messages = numbers.end - numbers.start;
    Ok(messages as f64 / process(service, numbers, IN_FLIGHT).await?.as_secs_f64())
}

/// Runs a transaction with these statements for each key. Each worker has its own connection.
async fn run_client(
    env: &Environment,
    numbers: Range<u64>,
    statements: &'static [&'static str],
) -> Result<f64, BoxError> {
    let share = (numbers.end - numbers.start) / IN_FLIGHT;
    let mut workers = Vec::new();
    for worker in 0..IN_FLIGHT {
        let (client, connection) = connect(&env.postgres.url(), NoTls).await?;
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
    Ok((share * IN_FLIGHT) as f64 / (clock.now() - start).as_secs_f64())
}

async fn transact(
    client: Client,
    statements: Vec<Statement>,
    numbers: Range<u64>,
) -> Result<(), BoxError> {
    for number in numbers {
        let key = numbered_key(number);
        client.batch_execute("BEGIN").await?;
        for statement in &statements {
            client.execute(statement, &[&key]).await?;
        }
        client.batch_execute("COMMIT").await?;
    }
    Ok(())
}
