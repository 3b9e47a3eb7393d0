//! One effect for each key with a library that the inbox does not know: `cargo run --example sqlx`.
//!
//! The inbox's transaction is one of `tokio_postgres`. With sqlx, Diesel or SeaORM, in Postgres or any other
//! database, the handler begins a transaction of its own, and writes in it that it was here. The layer
//! does the rest as ever: it counts attempts, keeps others out, and answers duplicates. What is left to
//! that row is the moment between the commit and the record of it: who dies or fails there has the handler
//! run once more, which then finds the row.
//!
//! Starts a Postgres of its own, whose programs must be there (`apt-get install postgresql`).

use campanile::PgStore;
use campanile::postgres::migrate;
use campanile::prelude::*;
use campanile_test::PgServer;
use sqlx::PgPool;
use tokio::time::sleep;

const TABLES: &str = "
    CREATE TABLE account (name text PRIMARY KEY, cents bigint NOT NULL);
    CREATE TABLE paid (payout text PRIMARY KEY);
    INSERT INTO account VALUES ('anna', 0)";

/// Pays, unless that was done: both rows are one commit. Says whether it did.
async fn pay(database: &PgPool, payout: &str) -> Result<bool, sqlx::Error> {
    let mut transaction = database.begin().await?;
    let row = "INSERT INTO paid VALUES ($1) ON CONFLICT DO NOTHING";
    let inserted = sqlx::query(row).bind(payout).execute(&mut *transaction).await?;
    let is_first = inserted.rows_affected() == 1;
    if is_first {
        let credit = "UPDATE account SET cents = cents + 100 WHERE name = 'anna'";
        sqlx::query(credit).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(is_first)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    campanile_examples::no_args()?;
    let postgres = PgServer::start()?;
    postgres.psql(TABLES)?;
    migrate(postgres.url()).await?;
    let payouts = Guard::new(PgStore::connect(postgres.url()).await?, "payouts")?;
    let database = PgPool::connect(&postgres.url()).await?;

    println!("it is paid, and something fails before that is recorded");
    let failing = payouts.run("payout-1", async |_| {
        assert!(pay(&database, "payout-1").await?);
        Err::<bool, BoxError>("the mail server is away".into())
    });
    let error = failing.await.expect_err("it fails");
    println!("  {error}");

    println!("the payout comes again: its handler runs, and finds that it was paid");
    let again = async |_| pay(&database, "payout-1").await;
    let outcome = loop {
        match payouts.run("payout-1", again).await {
            Ok(outcome) => break outcome,
            Err(error) => {
                let refusal = IdempotencyError::find(&*error);
                let wait = refusal.and_then(IdempotencyError::retry_after).ok_or(error)?;
                sleep(wait).await;
            }
        }
    };
    assert_eq!(outcome, Outcome::Processed(false));
    println!("and again: it is answered without the handler");
    assert!(payouts.run("payout-1", again).await?.is_duplicate());

    let cents: i64 = sqlx::query_scalar("SELECT cents FROM account").fetch_one(&database).await?;
    println!("anna has {cents} cents");
    if cents == 100 { Ok(()) } else { Err("it was not paid once".into()) }
}
