//! Inspects a server before the store relies on it.
//!
//! `report` queries the server, `permissions` queries what its user may do, and `evaluate` derives
//! findings from both; this module decides which findings refuse the server. `data_loss` checks
//! over each new connection whether the server still has what it acknowledged, and `watch` whether
//! its settings are still safe.

mod data_loss;
mod evaluate;
mod finding;
#[cfg(test)]
mod fuzz;
mod permissions;
mod report;
mod watch;

use std::error::Error;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use self::data_loss::{DataLossDetector, VerifyError};
pub use self::finding::{Finding, FindingKind, Safety, Severity};
pub(crate) use self::report::Info;
use self::report::ServerReport;
pub(crate) use self::watch::SettingsWatch;
use crate::connector::Endpoint;
use crate::error::is_transient;
use crate::store::MAX_TIMEOUT;
use crate::topology::Topology;
use crate::{ConnectError, RedisConfig};

/// The pause between two attempts to reach a server that is not up yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Inspects each server that accepts writes. Returns the accepted findings.
///
/// Waits for servers that are not up yet, because a process started together with its Redis is
/// often faster.
pub(crate) async fn check_when_up(
    topology: &Topology,
    config: &RedisConfig,
    watch: &SettingsWatch,
) -> Result<Box<[Finding]>, ConnectError> {
    let deadline = ConnectDeadline::new(config.connect_timeout);
    // Why the last attempt failed that was answered.
    let mut last: Option<ConnectError> = None;
    loop {
        let error = match check_all(topology, config, watch, &deadline).await {
            Err(ConnectError::Unreachable { address, source }) if is_transient(&*source) => {
                ConnectError::TimedOut { address, after: deadline.limit, source: Some(source) }
            }
            // The next attempt finds its successor.
            Err(error) if was_replaced(topology, &error) => error,
            Err(error @ ConnectError::TimedOut { .. }) => return Err(last.unwrap_or(error)),
            checked => return checked,
        };
        if last.is_none() {
            tracing::warn!(
                address = %topology,
                error = error.source().unwrap_or(&error),
                limit = ?deadline.limit,
                "Redis is not available yet; retrying"
            );
        }
        if timeout_at(deadline.at, sleep(RETRY_INTERVAL)).await.is_err() {
            return Err(error);
        }
        last = Some(error);
    }
}

/// Checks whether a server was refused only because it is a replica, although the cluster or the
/// sentinels have just named it: another server has taken over, and they did not know yet. The address of
/// a single server is a setting, which no attempt corrects.
fn was_replaced(topology: &Topology, error: &ConnectError) -> bool {
    let ConnectError::Unsafe { findings, .. } = error else { return false };
    !matches!(topology, Topology::Standalone(_))
        && findings.iter().all(|finding| finding.kind() == FindingKind::Replica)
}

/// Inspects all servers. An unavailable master of a cluster is skipped if another one is available,
/// as it is in later calls.
async fn check_all(
    topology: &Topology,
    config: &RedisConfig,
    watch: &SettingsWatch,
    deadline: &ConnectDeadline,
) -> Result<Box<[Finding]>, ConnectError> {
    let address = topology.to_string();
    let primaries = deadline.timeout(&address, topology.primaries()).await?;
    let primaries = primaries.map_err(|error| ConnectError::classify(error, &address))?;
    let count = primaries.len();

    let checks = primaries.into_iter().map(|server| check(server, config, watch, deadline));
    let (mut findings, mut unavailable) = (Vec::new(), Vec::new());
    for checked in join_all(checks).await {
        match checked {
            Ok(found) => findings.extend(found),
            Err(error @ (ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. })) => {
                unavailable.push(error);
            }
            Err(error) => return Err(error),
        }
    }
    if unavailable.len() == count
        && let Some(error) = unavailable.pop()
    {
        return Err(error);
    }
    for error in &unavailable {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "Redis cluster node is unavailable; continuing without it"
        );
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
    Ok(findings.into())
}

/// Connects, inspects the server, and closes the connection again: it belongs to the caller's
/// runtime, which need not be the one that uses the store.
///
/// The accepted findings are logged and returned.
async fn check(
    server: Endpoint,
    config: &RedisConfig,
    watch: &SettingsWatch,
    deadline: &ConnectDeadline,
) -> Result<Box<[Finding]>, ConnectError> {
    let address = server.info().addr().to_string().into_boxed_str();
    let findings = deadline.timeout(&address, inspect(server, &address, config, watch)).await??;
    findings.iter().for_each(log_finding);
    Ok(findings.into())
}

async fn inspect(
    server: Endpoint,
    address: &str,
    config: &RedisConfig,
    watch: &SettingsWatch,
) -> Result<Vec<Finding>, ConnectError> {
    let failed = |error| ConnectError::classify(error, address);
    let mut connection = server.open().await.map_err(failed)?;
    if config.safety == Safety::Off {
        return Ok(Vec::new());
    }
    let report = ServerReport::query(&mut connection, config).await.map_err(failed)?;
    let findings = evaluate::findings(&report, address, config);
    let fatal: Box<[_]> = fatal_findings(config, &findings).cloned().collect();
    if !fatal.is_empty() {
        return Err(ConnectError::Unsafe { address: address.into(), findings: fatal });
    }
    watch.record(address, &report, &findings);
    Ok(findings)
}

/// The findings for which the server is refused.
fn fatal_findings<'a>(
    config: &RedisConfig,
    findings: &'a [Finding],
) -> impl Iterator<Item = &'a Finding> {
    let refuses = config.safety == Safety::Refuse;
    findings.iter().filter(move |finding| refuses && finding.severity() == Severity::Unsafe)
}

/// The time limit of connecting the store.
struct ConnectDeadline {
    limit: Duration,
    at: Instant,
}

impl ConnectDeadline {
    fn new(limit: Duration) -> Self {
        Self { limit, at: Instant::now() + limit.min(MAX_TIMEOUT) }
    }

    async fn timeout<T>(
        &self,
        address: &str,
        future: impl Future<Output = T>,
    ) -> Result<T, ConnectError> {
        timeout_at(self.at, future).await.map_err(|_| ConnectError::TimedOut {
            address: address.into(),
            after: self.limit,
            source: None,
        })
    }
}

fn log_finding(finding: &Finding) {
    let (address, kind) = (finding.address(), finding.kind());
    match finding.severity() {
        Severity::Unsafe | Severity::DataLoss => {
            tracing::warn!(address, ?kind, "unsafe Redis configuration: {finding}");
        }
        Severity::Notice => tracing::info!(address, ?kind, "inspected Redis: {finding}"),
    }
}
