//! Settings compared with each other.

use std::time::Duration;

use super::finding::{FindingKind, Severity};
use super::kafka::Facts;
use super::{Deployment, Report, display};

/// The limits of the steps of a shutdown after the drain.
const SHUTDOWN_AFTER_DRAIN: Duration = Duration::from_secs(19);

pub(super) fn compare(deployment: &Deployment, kafka: &Facts, report: &mut Report) {
    compare_lock(deployment, kafka, report);
    compare_shutdown(deployment, kafka, report);
    compare_retentions(deployment, kafka, report);
    if let Some((topic, delay)) = deployment.retry_topics.last()
        && *delay < deployment.layer.backoff().max()
    {
        let backoff = display(deployment.layer.backoff().max());
        report.add(
            (FindingKind::RetryDelay, Severity::Advice),
            format!("retry topic `{topic}`"),
            format!("its delay is {}, but the longest backoff is {backoff}", display(*delay)),
            "a copy with a longer backoff waits in place, and holds up the copies behind it",
            "raise the delay of the last retry topic, or lower the maximum of the backoff",
        );
    }
}

fn compare_lock(deployment: &Deployment, kafka: &Facts, report: &mut Report) {
    let layer = &deployment.layer;
    if let Some(session) = kafka.session_timeout
        && layer.lock_ttl() > session
    {
        let longer = display(layer.lock_ttl() - session);
        report.add(
            (FindingKind::LockOutlivesSession, Severity::Advice),
            "the lock's time to live",
            format!(
                "it is {}, and session.timeout.ms {}",
                display(layer.lock_ttl()),
                display(session)
            ),
            format!(
                "the lock of a crashed consumer outlives the rebalance by up to {longer}, for which \
                 its records wait"
            ),
            "lower `lock_ttl` to at most session.timeout.ms",
        );
    }
    if let Some(handler) = deployment.handler_timeout
        && handler > layer.max_hold()
    {
        report.add(
            (FindingKind::MaxHold, Severity::DataLoss),
            "max_hold",
            format!(
                "a handler may take {}, but its lock is held for {} at most",
                display(handler),
                display(layer.max_hold())
            ),
            "a slow handler loses its lock, and its record runs again",
            "raise `max_hold`, or shorten the handler's timeout",
        );
    }
}

fn compare_shutdown(deployment: &Deployment, kafka: &Facts, report: &mut Report) {
    let drain = deployment.drain_timeout;
    let revoke = kafka.max_poll_interval.map(|interval| interval / 2);
    let (limit, name) = match revoke {
        Some(revoke) if revoke < drain => (revoke, "half of max.poll.interval.ms"),
        _ => (drain, "the drain timeout"),
    };
    if let Some(handler) = deployment.handler_timeout
        && handler > limit
    {
        report.add(
            (FindingKind::DrainTimeout, Severity::DataLoss),
            "the drain timeout",
            format!("a handler may take {}, but {name} is {}", display(handler), display(limit)),
            "a shutdown or a rebalance drops a slow handler, and its record runs again",
            "raise the drain timeout (`Consumer::with_drain_timeout`) and max.poll.interval.ms, or \
             shorten the handler's timeout",
        );
    }
    let shutdown = drain.saturating_add(SHUTDOWN_AFTER_DRAIN);
    if let Some(period) = deployment.grace_period
        && period < shutdown
    {
        report.add(
            (FindingKind::GracePeriod, Severity::DataLoss),
            "the grace period",
            format!(
                "it is {}, but a shutdown takes up to {}: the drain timeout and 19 s",
                display(period),
                display(shutdown)
            ),
            "the process is killed while records are in flight, and they run again",
            "raise the grace period (`terminationGracePeriodSeconds`), or lower the drain timeout",
        );
    }
}

/// Compares how long records and entries are kept.
fn compare_retentions(deployment: &Deployment, kafka: &Facts, report: &mut Report) {
    let layer = &deployment.layer;
    for (topic, records) in &kafka.source_retentions {
        let subject = || format!("topic `{topic}`");
        let is_kept = |name: &str, entries| {
            format!("records are kept {}, but {name} {}", display(*records), display(entries))
        };
        if *records > layer.retention() {
            report.add(
                (FindingKind::Retention, Severity::DataLoss),
                subject(),
                is_kept("COMPLETED entries", layer.retention()),
                "a record that is read again after its entry has expired, such as after an offset \
                 reset, runs again",
                "raise `retention` of the layer, or lower the topic's retention.ms",
            );
            // The same records, and the same fix.
            continue;
        }
        if *records > layer.attempt_retention() {
            report.add(
                (FindingKind::AttemptRetention, Severity::Advice),
                subject(),
                is_kept("attempts", layer.attempt_retention()),
                "after an outage that is longer, a poison record gets all its attempts again",
                "raise `attempt_retention` of the layer",
            );
        }
        if *records > layer.failed_retention() {
            report.add(
                (FindingKind::FailedRetention, Severity::Advice),
                subject(),
                is_kept("FAILED entries", layer.failed_retention()),
                "a poison record that is read again gets all its attempts and a dead letter again",
                "raise `failed_retention` of the layer",
            );
        }
    }
}
