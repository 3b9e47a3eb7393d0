//! Which metric shows each fault of docs/guarantees.md.

use std::collections::BTreeSet;

use crate::files;

/// The sections of docs/guarantees.md in which each anchor is a fault.
const SECTIONS: &[&str] =
    &["## Failure handling", "### Redis faults", "### Rebalances and restarts", "## Common faults"];

/// Series, with the faults that raise them.
pub(crate) const SHOWN: &[(&str, &[&str])] = &[
    (
        r#"campanile_requests_total{campanile_request_outcome="attempt_failed"}"#,
        &["handler-failure", "batch-failure", "fault-handler-panic"],
    ),
    (
        r#"campanile_consumer_retries_total{error_type="attempt_failed"}"#,
        &["fault-redelivery-after-failure"],
    ),
    (
        // The lock of a process that is gone, of one that waits for its backoff, or of a release that
        // was lost.
        r#"campanile_requests_total{campanile_request_outcome="locked"}"#,
        &[
            "locked-key",
            "process-kill",
            "lost-release",
            "fault-process-dies",
            "fault-refused-duplicate",
        ],
    ),
    (r#"campanile_requests_total{campanile_request_outcome="dropped"}"#, &["interrupted-handler"]),
    (
        r#"campanile_requests_total{campanile_request_outcome="mismatch"}"#,
        &["fault-lost-fingerprint"],
    ),
    (
        r#"campanile_requests_total{campanile_request_outcome="invalid_key"}"#,
        &["fault-strange-headers"],
    ),
    (
        r#"campanile_requests_total{campanile_request_outcome="store_error"}"#,
        &["fault-outage-counted"],
    ),
    (
        r#"campanile_requests_total{campanile_request_outcome="exhausted"}"#,
        &["no-attempt-left", "fault-poison-record"],
    ),
    (
        r#"campanile_duplicates_total{campanile_duplicate_cause="redelivery"}"#,
        &["settled-key", "fault-offset-reset"],
    ),
    (
        r#"campanile_duplicates_total{campanile_duplicate_cause="repeat"}"#,
        &["fault-producer-repeats", "fault-redrive-completed"],
    ),
    (
        r#"campanile_duplicates_total{campanile_duplicate_cause="local_run"}"#,
        &["fault-concurrent-duplicate"],
    ),
    (
        r#"campanile_duplicates_total{campanile_duplicate_cause="other_process"}"#,
        &["fault-simultaneous-deliveries"],
    ),
    ("campanile_lock_wait_duration_seconds_count", &["fault-waiter-gives-up"]),
    (
        r#"campanile_locks_lost_total{campanile_lock_loss_cause="expired"}"#,
        &["lock-lost", "fault-heartbeat-errors"],
    ),
    (r#"campanile_locks_lost_total{campanile_lock_loss_cause="max_hold"}"#, &["max-hold"]),
    (
        r#"campanile_settlements_refused_total{campanile_settlement="complete"}"#,
        &["fault-outlived-lock"],
    ),
    ("campanile_completions_unrecorded", &["unanswered-completion", "fault-unwritable-completion"]),
    (
        r#"campanile_unguarded_runs_total{campanile_unguarded_cause="store_unavailable"}"#,
        &["fault-unprotected-processing"],
    ),
    ("campanile_consumer_store_unavailable", &["store-unavailable"]),
    ("campanile_consumer_dependencies_unavailable", &["dependency-unavailable"]),
    (
        r#"campanile_store_errors_total{error_type="timeout"}"#,
        &["redis-hang", "redis-dropped-connections", "fault-lost-reply", "fault-mismatched-reply"],
    ),
    (
        r#"campanile_store_errors_total{error_type="unavailable"}"#,
        &["redis-restart", "redis-failover", "redis-failover-by-command", "fault-demoted-primary"],
    ),
    ("campanile_redis_shortfalls_total", &["redis-failover-with-wait"]),
    (
        r#"campanile_redis_data_losses_total{campanile_redis_loss="completions"}"#,
        &["limit-data-loss"],
    ),
    (r#"campanile_redis_data_losses_total{campanile_redis_loss="namespace"}"#, &["limit-flush"]),
    ("campanile_redis_unsafe_settings_total", &["fault-eviction", "limit-redis-settings"]),
    ("campanile_postgres_unsafe_settings_total", &["postgres-settings"]),
    (
        r#"campanile_store_call_duration_seconds_count{campanile_store_operation="renew"}"#,
        &["fault-blocked-heartbeat"],
    ),
    (r#"campanile_consumer_dead_letters_total{error_type="decode"}"#, &["untriable-record"]),
    (
        r#"campanile_consumer_paused{campanile_pause_cause="flood_limit"}"#,
        &["dead-letter-flood", "fault-broken-dependency"],
    ),
    (
        r#"campanile_consumer_records_total{campanile_record_outcome="deferred"}"#,
        &["deferred-record"],
    ),
    (
        r#"campanile_consumer_records_total{campanile_record_outcome="revoked"}"#,
        &["fault-completion-after-revoke"],
    ),
    (
        r#"campanile_consumer_records_total{campanile_record_outcome="unfinished"}"#,
        &["stopped-member", "fault-shutdown-without-broker"],
    ),
    (
        r#"campanile_consumer_rebalances_total{campanile_rebalance_kind="revoked"}"#,
        &["member-changes"],
    ),
    (
        r#"campanile_consumer_rebalances_total{campanile_rebalance_kind="assigned"}"#,
        &["killed-members"],
    ),
    (
        r#"campanile_consumer_rebalances_total{campanile_rebalance_kind="lost"}"#,
        &["suspended-members", "broker-restart"],
    ),
    (
        "campanile_consumer_oldest_age_seconds",
        &["interrupted-give-ups", "fault-out-of-order-success"],
    ),
    (
        r#"messaging_client_sent_messages_total{error_type="too_large"}"#,
        &["dead-letter-not-published", "fault-undeliverable-letter"],
    ),
    // Faults that are described elsewhere.
    (
        r#"campanile_consumer_log_changes_total{campanile_log_change_kind="recreated"}"#,
        &["recreated-topic"],
    ),
    (
        r#"campanile_consumer_log_changes_total{campanile_log_change_kind="deleted"}"#,
        &["deleted-records"],
    ),
    (
        r#"campanile_consumer_log_changes_total{campanile_log_change_kind="truncated"}"#,
        &["lost-end"],
    ),
    ("campanile_outbox_oldest_age_seconds", &["outbox-refused-message", "outbox-relay-failover"]),
    (r#"campanile_store_errors_total{error_type="unreadable"}"#, &["unreadable-entry"]),
];

/// Faults that no metric shows, with the reason.
const NOT_SHOWN: &[(&str, &str)] = &[
    ("redis-script-flush", "the same call sends the script again"),
    ("fault-missing-script", "the same call sends the script again"),
    ("redis-rotated-secrets", "the next connection uses them"),
    ("redis-moved-slots", "the same call follows the redirection"),
    ("fault-unlock-during-renewal", "the order of the calls excludes it"),
    ("fault-offset-gaps", "nothing happens"),
    ("fault-dead-letter-headers", "the headers are right"),
    ("fault-shared-redis", "a namespace is mandatory"),
    ("fault-record-key", "equal keys are duplicates, whatever they mean"),
    ("fault-recreated-topic", "the keys differ"),
];

/// Returns the anchors in a part of docs/guarantees.md.
fn anchors(text: &str) -> BTreeSet<&str> {
    text.split("<a id=\"").skip(1).map(|rest| rest.split_once('"').unwrap().0).collect()
}

#[test]
fn each_fault_of_guarantees_is_shown_or_says_why_not() {
    let text = files::read("docs/guarantees.md");
    let mut faults = BTreeSet::new();
    for section in SECTIONS {
        let (_, rest) = text.split_once(&format!("\n{section}\n")).unwrap();
        faults.extend(anchors(rest.split("\n#").next().unwrap()));
    }
    let shown = SHOWN.iter().flat_map(|(_, faults)| *faults).copied();
    let rows: Vec<_> = shown.chain(NOT_SHOWN.iter().map(|(fault, _)| *fault)).collect();
    let unique: BTreeSet<_> = rows.iter().copied().collect();
    assert_eq!(unique.len(), rows.len(), "each fault has one row");
    let missing: Vec<_> = faults.difference(&unique).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
    let unknown: Vec<_> = unique.difference(&anchors(&text)).copied().collect();
    assert!(unknown.is_empty(), "not in docs/guarantees.md: {unknown:?}");
}
