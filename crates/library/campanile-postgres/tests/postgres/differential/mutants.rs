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
    // The function of a former version with the same name has fewer parameters.
    let definition = "SELECT pg_get_functiondef(oid) FROM pg_proc \
        WHERE proname = $1 AND pronamespace = 'campanile'::regnamespace \
        ORDER BY pronargs DESC LIMIT 1";
    let row = client.query_one(definition, &[&function]).await.unwrap();
    let text: String = row.get(0);
    assert!(text.contains(from), "{function} does not contain {from}");
    client.batch_execute(&text.replace(from, to)).await.unwrap();
    match run(&database, OPERATIONS).await {
        Ok(runner) => panic!("not found in {} operations", runner.fuzzer.operations()),
        Err(difference) => println!("{difference}"),
    }
}

#[tokio::test]
async fn mutant_accepting_a_stale_token_is_found() {
    assert_found("hold", "e.token = asked.token", "true").await;
}

#[tokio::test]
async fn mutant_accepting_another_owner_is_found() {
    assert_found("hold", "AND e.owner = asked.owner", "").await;
}

#[tokio::test]
async fn mutant_not_counting_a_takeover_is_found() {
    assert_found("acquire", "e.attempt := least(e.attempt + 1, 65535);", "NULL;").await;
}

#[tokio::test]
async fn mutant_with_a_clock_not_the_databases_is_found() {
    let another = "(clock_timestamp() + interval '3 seconds')";
    assert_found("acquire", "clock_timestamp()", another).await;
}

#[tokio::test]
async fn mutant_with_a_token_that_does_not_increase_is_found() {
    assert_found("acquire", "greatest(e.token + 1, instant_micros,", "greatest(instant_micros,")
        .await;
}

#[tokio::test]
async fn mutant_not_limiting_the_lock_ttl_is_found() {
    assert_found("acquire", "interval '1 hour'", "interval '2 hours'").await;
}

#[tokio::test]
async fn mutant_releasing_one_attempt_too_many_is_found() {
    assert_found("release", "e.interrupts < 8", "e.interrupts < 9").await;
}

#[tokio::test]
async fn mutant_counting_an_expired_entry_is_found() {
    assert_found("acquire", "e.attempt := 0;", "NULL;").await;
}

#[tokio::test]
async fn mutant_erasing_an_error_with_an_empty_one_is_found() {
    let erased = "errors[array_position(keys, e.key)]";
    assert_found("fail", &format!("coalesce({erased}, e.error)"), erased).await;
}

#[tokio::test]
async fn mutant_keeping_the_reply_after_a_redrive_is_found() {
    // The table's constraint rejects the row.
    assert_found("redrive", "reply = NULL", "reply = e.reply").await;
}

#[tokio::test]
async fn mutant_dropping_details_at_a_grant_without_any_is_found() {
    assert_found("acquire", "coalesce(asked.details, e.details)", "asked.details").await;
}

#[tokio::test]
async fn mutant_keeping_the_details_of_an_expired_entry_is_found() {
    assert_found("acquire", "e.details := NULL;", "NULL;").await;
}

#[tokio::test]
async fn mutant_completing_without_replacing_details_is_found() {
    assert_found("complete", ", details = all_details[array_position(keys, e.key)]", "").await;
}

#[tokio::test]
async fn mutant_adopting_without_details_is_found() {
    assert_found(
        "adopt",
        "instant, campanile.after(instant, retention), a.reply, a.details",
        "instant, campanile.after(instant, retention), a.reply, NULL",
    )
    .await;
}

#[tokio::test]
async fn mutants_of_recorded_steps_are_found() {
    for (from, to) in [
        ("NOT found_step AND", "found_step IS DISTINCT FROM NULL AND"),
        (" AND octet_length(asked.name) <= 64", ""),
        ("octet_length(asked.name) <= 64", "octet_length(asked.name) < 64"),
        ("octet_length(next_steps) <= 65536", "octet_length(next_steps) < 65536"),
        ("coalesce(asked.steps, '') || ", ""),
        (", expires_at = campanile.after(instant, retention)", ""),
        ("recorded = cardinality(keys)", "true"),
    ] {
        assert_found("record_step", from, to).await;
    }
}

#[tokio::test]
async fn mutants_reading_steps_are_found() {
    assert_found("has_step", "IF step_end > size THEN", "IF false THEN").await;
    assert_found("has_step", "start := step_end;", "start := size;").await;
}

#[tokio::test]
async fn mutants_dropping_or_keeping_steps_are_found() {
    assert_found("acquire", "e.steps := NULL;", "NULL;").await;
    assert_found("acquire", "THEN e.steps END", "THEN NULL::bytea END").await;
    assert_found("complete", ", steps = NULL", "").await;
    assert_found("adopt", ", steps = NULL", "").await;
}
