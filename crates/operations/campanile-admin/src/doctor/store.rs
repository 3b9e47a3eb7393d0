//! The store of any kind.

use campanile_core::Namespace;
use campanile_idempotency::{InspectStore, ScanCursor, ScanFilter};

use super::finding::{FindingKind, Severity};
use super::{Deployment, Report, postgres, redis};
use crate::StoreConfig;
use crate::error::chain;

/// The number of pages in which an entry is looked for: some 10 000 keys of Redis, which takes it less
/// than 0.1 s. In Postgres, the first page decides.
const MAX_PAGES: usize = 40;

/// Examines the store.
pub(super) async fn examine(deployment: &Deployment) -> Report {
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
            return report;
        }
    };
    report.add_unchecked(
        format!("whether the namespace `{namespace}` is used by this group only"),
        "groups that share a namespace answer each other's records as duplicates; compare the \
         settings of all consumers",
    );
    match &deployment.store {
        StoreConfig::Redis(config) => redis::examine(config, namespace, &mut report).await,
        StoreConfig::Postgres(config) => {
            postgres::examine(config, namespace, deployment, &mut report).await;
        }
    }
    report
}

/// Looks for an entry of the namespace. A name with a typing mistake has none.
pub(super) async fn check_namespace(
    store: &impl InspectStore,
    namespace: &Namespace,
    report: &mut Report,
) {
    let filter = ScanFilter::new(namespace.clone());
    let mut next = Some(ScanCursor::default());
    for _ in 0..MAX_PAGES {
        let Some(cursor) = next else {
            return report.add(
                (FindingKind::NamespaceEmpty, Severity::Advice),
                format!("namespace `{namespace}`"),
                "the store has no entries of it",
                "if the consumer has run before, the name or the store is not that of its layer, or \
                 its entries were lost",
                "compare both with the settings of the layer; before its first start, nothing to do",
            );
        };
        next = match store.scan(&filter, &cursor).await {
            Ok(page) if page.entries.is_empty() => page.next,
            Ok(_) => return,
            Err(error) => {
                let what = format!("whether the namespace `{namespace}` has entries");
                return report.add_unchecked(what, chain(&error));
            }
        };
    }
    report.add_unchecked(
        format!("whether the namespace `{namespace}` has entries"),
        "the first keys of the server are of others; `campanile list` reads all of them",
    );
}
