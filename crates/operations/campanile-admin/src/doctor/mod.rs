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
use crate::time::Period;

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

/// Formats a time. [`Duration::MAX`] is forever.
fn display(time: Duration) -> String {
    match time {
        Duration::MAX => "forever".to_owned(),
        time => Period(time).to_string(),
    }
}
