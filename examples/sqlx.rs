//! One effect for each key with a database library that the inbox does not support:
//! `cargo run --example sqlx`.
//!
//! The inbox's transaction is one of `tokio_postgres`. With sqlx, Diesel or SeaORM, in Postgres or
//! any other database, the handler begins its own transaction and also inserts a row that marks the
//! key as done. The layer still counts attempts, excludes concurrent runs, and answers duplicates.
//! The row covers only the time between the commit and the completion of the entry: if the handler
//! crashes or fails in between, it runs once more and finds the row.
//!
//! The example starts its own Postgres; install the programs with `apt-get install postgresql`.

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

/// Pays, unless the payout was paid before. Both rows are one commit. Returns whether it paid.
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
    let payouts = Runner::new(PgStore::connect(postgres.url()).await?, "payouts")?;
    let database = PgPool::connect(&postgres.url()).await?;

    println!("the payout is paid, and the handler fails before the completion is recorded");
    let failing = payouts.run("payout-1", async |_| {
        assert!(pay(&database, "payout-1").await?);
        Err::<bool, BoxError>("the mail server is unavailable".into())
    });
    let error = failing.await.expect_err("the handler fails");
    println!("  {error}");

    println!("the payout is retried: its handler runs and finds that it was paid");
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
    println!("the payout comes again: it is answered as a duplicate, without the handler");
    assert!(payouts.run("payout-1", again).await?.is_duplicate());

    let cents: i64 = sqlx::query_scalar("SELECT cents FROM account").fetch_one(&database).await?;
    println!("anna has {cents} cents");
    if cents == 100 { Ok(()) } else { Err("the payout was not paid exactly once".into()) }
}
