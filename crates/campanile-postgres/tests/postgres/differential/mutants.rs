//! Functions with one mistake each. The comparison must find every one.

use super::run;
use crate::support::Database;

/// The comparison must find a mutant within this many operations. The rarest needs some thousands,
/// so the tests do not depend on chance.
const OPERATIONS: usize = 1_000_000;

/// Replaces a part of a function and asserts that the comparison finds a difference.
async fn assert_found(function: &str, from: &str, to: &str) {
    let database = Database::new().await;
    let client = database.client().await;
    let definition = "SELECT pg_get_functiondef($1::text::regproc)";
    let row = client.query_one(definition, &[&format!("campanile.{function}")]).await.unwrap();
    let text: String = row.get(0);
    assert!(text.contains(from), "{function} does not contain {from}");
    client.batch_execute(&text.replace(from, to)).await.unwrap();
    match run(&database, OPERATIONS).await {
        Ok(runner) => panic!("not found in {} operations", runner.play.operations()),
        Err(difference) => println!("{difference}"),
    }
}

#[tokio::test]
async fn a_settlement_by_a_stale_token_would_be_found() {
    assert_found("hold", "e.token = asked.token", "true").await;
}

#[tokio::test]
async fn a_settlement_by_another_owner_would_be_found() {
    assert_found("hold", "AND e.owner = asked.owner", "").await;
}

#[tokio::test]
async fn a_takeover_that_counts_no_attempt_would_be_found() {
    assert_found("acquire", "e.attempt := least(e.attempt + 1, 65535);", "NULL;").await;
}

#[tokio::test]
async fn a_clock_that_is_not_the_databases_would_be_found() {
    let another = "(clock_timestamp() + interval '3 seconds')";
    assert_found("acquire", "clock_timestamp()", another).await;
}

#[tokio::test]
async fn a_token_that_does_not_rise_would_be_found() {
    assert_found("acquire", "greatest(e.token + 1, instant_micros,", "greatest(instant_micros,")
        .await;
}

#[tokio::test]
async fn a_lock_beyond_the_longest_that_is_not_cut_would_be_found() {
    assert_found("acquire", "interval '1 hour'", "interval '2 hours'").await;
}

#[tokio::test]
async fn an_attempt_that_is_handed_back_once_too_often_would_be_found() {
    assert_found("release", "e.interrupts < 8", "e.interrupts < 9").await;
}

#[tokio::test]
async fn an_entry_that_is_over_and_still_counts_would_be_found() {
    assert_found("acquire", "e.attempt := 0;", "NULL;").await;
}

#[tokio::test]
async fn an_error_that_an_empty_one_erases_would_be_found() {
    let erased = "errors[array_position(keys, e.key)]";
    assert_found("fail", &format!("coalesce({erased}, e.error)"), erased).await;
}

#[tokio::test]
async fn a_reply_that_outlives_a_redrive_would_be_found() {
    // The table's constraint rejects the row.
    assert_found("redrive", "reply = NULL", "reply = e.reply").await;
}
