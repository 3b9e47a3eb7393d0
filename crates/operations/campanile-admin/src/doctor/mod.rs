//! Checks a deployment: brokers, topics, group, store, and their settings against each other.
//!
//! Nothing is changed: no group is joined, no record is produced, and no entry is written. What cannot
//! be checked without a change, such as the permission to write to a topic, is listed as not checked.
//!
//! ```no_run
//! use campanile_admin::doctor::{Deployment, examine};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let deployment = Deployment::from_toml(&std::fs::read_to_string("billing.toml")?)?;
//! let report = examine(&deployment).await;
//! println!("{report}");
//! std::process::exit(if report.is_sound() { 0 } else { 1 });
//! # }
//! ```
//!
//! # Layout
//!
//! * [`Deployment`] has the settings, [`examine`] returns a [`Report`] of [`Finding`]s.
//! * `kafka` asks the brokers, `redis` and `postgres` the store; `timeouts` compares settings with each
//!   other.

mod deployment;
mod finding;
mod kafka;
mod postgres;
mod redis;
mod report;
mod store;
mod timeouts;

use std::time::Duration;

pub use self::deployment::Deployment;
pub use self::finding::{Finding, FindingKind, Severity};
pub use self::report::{Report, Unchecked};

/// Examines a deployment. Takes some seconds at most for servers that answer.
///
/// A server that cannot be reached is a finding; the others are examined nevertheless.
///
/// # Cancellation
/// Nothing is changed, so the future can be dropped. A request to a broker that is in flight ends in
/// the background.
///
/// # Panics
/// Panics outside of a tokio runtime.
pub async fn examine(deployment: &Deployment) -> Report {
    // Boxed, because the nested futures of the stores exceed the compiler's limit in callers.
    let ((mut report, kafka), store) =
        tokio::join!(kafka::examine(deployment), Box::pin(store::examine(deployment)));
    report.extend(store);
    timeouts::compare(deployment, &kafka, &mut report);
    report.finish(&deployment.accepted)
}

/// Formats a time in the largest unit that represents it exactly. [`Duration::MAX`] is forever.
fn display(time: Duration) -> String {
    let fits =
        |(unit, _): &(u64, _)| time.subsec_nanos() == 0 && time.as_secs().is_multiple_of(*unit);
    match [(86_400, "d"), (3_600, "h"), (60, "min")].into_iter().find(fits) {
        _ if time == Duration::MAX => "forever".to_owned(),
        Some((unit, name)) => format!("{} {name}", time.as_secs() / unit),
        None => format!("{time:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_shown_in_the_largest_exact_unit() {
        let text = |seconds| display(Duration::from_secs(seconds));
        assert_eq!([text(604_800), text(90_000), text(120)], ["7 d", "25 h", "2 min"]);
        assert_eq!([text(61), display(Duration::from_millis(1_500))], ["61s", "1.5s"]);
        assert_eq!(display(Duration::MAX), "forever");
    }
}
