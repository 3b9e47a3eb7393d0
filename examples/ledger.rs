//! Money that is moved once, whatever crashes: `cargo run --example ledger`.
//!
//! The example reads transfers from Kafka, every tenth of them sent twice, and books them in
//! Postgres with the transactional inbox: the handler's writes and the completion of the transfer's
//! key are one commit. A constraint prevents overdrafts. The example kills the consumer while it
//! works, starts another, and finally checks the books against the transfers that were sent.
//!
//! It starts its own Postgres; install the programs with `apt-get install postgresql`.
//! Kafka is librdkafka's mock, or a real one as for `quickstart`.

use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use campanile::IdempotencyConfig;
use campanile::postgres::tokio_postgres::error::SqlState;
use campanile::postgres::{Inbox, Transaction, TransactionError, migrate};
use campanile::prelude::*;
use campanile::{Consumer, PgStore, Request, error};
use campanile_examples::Environment;
use campanile_test::PgServer;
use rdkafka::ClientConfig;
use serde::{Deserialize, Serialize};
use tower::ServiceBuilder;

const TRANSFERS: usize = 1_000;
const ACCOUNTS: usize = 20;

const BOOKS: &str = "
    CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0));
    CREATE TABLE transfer (id text, debtor int, creditor int, cents bigint);
    INSERT INTO account SELECT n, 1000 FROM generate_series(0, 19) n;";

#[derive(Clone, Serialize, Deserialize)]
struct Transfer {
    id: String,
    debtor: i32,
    creditor: i32,
    cents: i64,
}

/// The handler: three writes, and no code for crashes, duplicates or deadlocks.
async fn book(request: Request<Transfer>) -> Result<(), BoxError> {
    let Transfer { id, debtor, creditor, cents } = request.body();
    let transaction = Transaction::from_request(&request)?;
    transaction
        .execute("INSERT INTO transfer VALUES ($1, $2, $3, $4)", &[id, debtor, creditor, cents])
        .await?;
    let debit = "UPDATE account SET balance = balance - $2 WHERE id = $1";
    transaction.execute(debit, &[debtor, cents]).await.map_err(refused)?;
    let credit = "UPDATE account SET balance = balance + $2 WHERE id = $1";
    transaction.execute(credit, &[creditor, cents]).await?;
    Ok(())
}

/// Gives up a transfer from an account without enough money: no further attempt would succeed.
fn refused(error: TransactionError) -> BoxError {
    match error.code() {
        Some(&SqlState::CHECK_VIOLATION) => error::skip(error).into(),
        _ => error.into(),
    }
}

/// The consumer, in a separate process.
#[tokio::main]
async fn consume(postgres: &str, topic: &str, settings: &[String]) -> Result<(), BoxError> {
    migrate(postgres).await?;
    let inbox = Inbox::new(&PgStore::connect(postgres).await?)?;
    // short, so that the example ends soon: records of a killed process wait that long
    let config = IdempotencyConfig::new("transfers").with_lock_ttl(Duration::from_secs(1));
    let idempotency =
        IdempotencyLayer::new(inbox.keeper(), config, key::field(|t: &Transfer| &t.id))?;
    let service = ServiceBuilder::new()
        // records that fail to decode never acquire a lock
        .layer(DecodeLayer::json())
        // one lock for each transfer; its booking and its completion are one commit
        .layer(inbox.layer(idempotency)?)
        .service_fn(book);
    let mut config = ClientConfig::new();
    for setting in settings {
        let (name, value) = setting.split_once('=').ok_or("a setting must be NAME=VALUE")?;
        config.set(name, value);
    }
    Consumer::new(ConsumerConfig::from(config))?
        .subscribe([topic.to_owned()])
        .serve(service)
        .await?;
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, postgres, topic, settings @ ..] = &*arguments
        && mode == "consume"
    {
        return consume(postgres, topic, settings);
    }
    let environment = Environment::from_args()?;
    // Transfers between the same accounts in opposite directions may deadlock, and then run again.
    let postgres = PgServer::builder().config("deadlock_timeout", "50ms").start()?;
    postgres.psql(BOOKS)?;
    let sent = (0..TRANSFERS).chain((0..TRANSFERS).step_by(10));
    environment.produce(sent.map(|n| transfer(&environment.topic, n)), |transfer| &transfer.id)?;

    println!("consuming until half of the transfers are booked");
    let mut consumer = start(&environment, &postgres)?;
    wait_for(&mut consumer, || Ok(count(&postgres, "transfer")? >= TRANSFERS / 2))?;
    consumer.kill()?;
    consumer.wait()?;
    println!("killed the consumer while it was working; starting another");
    let mut consumer = start(&environment, &postgres)?;
    wait_for(&mut consumer, || {
        let settled = "campanile.entry WHERE state IN ('C', 'F')";
        Ok(count(&postgres, settled)? == TRANSFERS)
    })?;
    consumer.kill()?;
    consumer.wait()?;
    print_summary(&postgres)
}

fn transfer(topic: &str, n: usize) -> Transfer {
    let (debtor, creditor) = ((n * 7 % ACCOUNTS) as i32, (n * 13 % ACCOUNTS + 1) as i32);
    let creditor = creditor % ACCOUNTS as i32;
    Transfer { id: format!("{topic}/{n}"), debtor, creditor, cents: (n % 300) as i64 }
}

fn start(environment: &Environment, postgres: &PgServer) -> Result<Child, BoxError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["consume", &postgres.url(), &environment.topic]);
    let settings = environment.client("ledger");
    command.args(settings.config_map().iter().map(|(name, value)| format!("{name}={value}")));
    Ok(command.spawn()?)
}

fn wait_for(
    consumer: &mut Child,
    condition: impl Fn() -> Result<bool, BoxError>,
) -> Result<(), BoxError> {
    while !condition()? {
        if let Some(status) = consumer.try_wait()? {
            return Err(format!("the consumer exited: {status}").into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn count(postgres: &PgServer, what: &str) -> Result<usize, BoxError> {
    // The consumer creates the schema, so the table may not exist yet.
    let found = postgres.psql(&format!("SELECT count(*) FROM {what}"));
    Ok(found.map_or(Ok(0), |count| count.parse())?)
}

fn print_summary(postgres: &PgServer) -> Result<(), BoxError> {
    let booked = count(postgres, "transfer")?;
    let refused = count(postgres, "campanile.entry WHERE state = 'F'")?;
    let again = count(postgres, "campanile.entry WHERE state = 'C' AND attempt > 1")?;
    let twice = count(postgres, "(SELECT id FROM transfer GROUP BY id HAVING count(*) > 1) t")?;
    let missing = TRANSFERS - (booked - twice) - refused;
    let money = postgres.psql("SELECT sum(balance) FROM account")?;
    let wrong = "account a WHERE balance <> 1000 \
        + (SELECT coalesce(sum(cents), 0) FROM transfer t WHERE t.creditor = a.id) \
        - (SELECT coalesce(sum(cents), 0) FROM transfer t WHERE t.debtor = a.id)";
    let wrong = count(postgres, wrong)?;
    println!("transfers booked                         {booked:>5}");
    println!("transfers refused by the constraint      {refused:>5}");
    println!("retried by the other consumer            {again:>5}");
    println!("transfers booked twice                   {twice:>5}");
    println!("transfers missing                        {missing:>5}");
    println!("accounts with a wrong balance            {wrong:>5}");
    println!("money in all accounts                    {money:>5}");
    if twice > 0 || missing > 0 || wrong > 0 || money != (ACCOUNTS * 1_000).to_string() {
        return Err("the books do not balance".into());
    }
    Ok(())
}
