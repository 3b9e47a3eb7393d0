//! The store of any kind.

use std::time::Duration;

use super::finding::{FindingKind, Severity};
use super::{Deployment, Report, postgres, redis};
use crate::StoreConfig;

/// Examines the store. Returns also the longest time that one call to it may take, if it is known.
pub(super) async fn examine(deployment: &Deployment) -> (Report, Option<Duration>) {
    let mut report = Report::default();
    let namespace = match deployment.layer.validate() {
        Ok(namespace) => namespace,
        Err(error) => {
            report.add(
                (FindingKind::InvalidSetting, Severity::Failure),
                "the layer",
                error.to_string(),
                "`IdempotencyLayer::new` fails",
                "correct the setting",
            );
            return (report, None);
        }
    };
    report.add_unchecked(
        format!("whether the namespace `{namespace}` is used by this group only"),
        "groups that share a namespace answer each other's records as duplicates; compare the \
         settings of all consumers",
    );
    let call_timeout = match &deployment.store {
        StoreConfig::Redis(config) => redis::examine(config, namespace, &mut report).await,
        StoreConfig::Postgres(config) => postgres::examine(config, deployment, &mut report).await,
    };
    (report, call_timeout)
}
