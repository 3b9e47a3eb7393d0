//! Inspects a server before the store relies on it.
//!
//! `seen` queries the server, `permissions` queries what its user may do, and `judge` derives
//! findings from both; this module decides which findings refuse the server. `witness` checks over
//! each new connection whether the server still has what it acknowledged.

mod finding;
mod judge;
mod permissions;
mod seen;
mod witness;

use std::time::Duration;

use futures_util::future::join_all;
use redis::ConnectionInfo;
use tokio::time::{Instant, timeout_at};

pub use self::finding::{Finding, FindingKind, Safety, Severity};
use self::seen::Seen;
pub(crate) use self::witness::{Unmet, Witness};
use crate::connection;
use crate::error::may_pass;
use crate::store::LONGEST;
use crate::topology::Topology;
use crate::{ConnectError, RedisConfig};

/// The pause between two attempts to reach a server that is not up yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Inspects each server that accepts writes. Returns the accepted findings.
///
/// Waits for servers that are not up yet, because a process started together with its Redis is
/// often faster.
pub(crate) async fn check_when_up(
    topology: &Topology,
    config: &RedisConfig,
) -> Result<Box<[Finding]>, ConnectError> {
    let time = Time::new(config.connect_timeout);
    let mut is_told = false;
    loop {
        match check_all(topology, config, &time).await {
            Err(ConnectError::Unreachable { address, source }) if may_pass(&*source) => {
                if !time.allows(PAUSE) {
                    let (after, source) = (time.limit, Some(source));
                    return Err(ConnectError::TimedOut { address, after, source });
                }
                if !is_told {
                    let error = &*source as &dyn std::error::Error;
                    tracing::warn!(
                        %address,
                        error,
                        limit = ?time.limit,
                        "Redis is not available yet; retrying"
                    );
                    is_told = true;
                }
                tokio::time::sleep(PAUSE).await;
            }
            checked => return checked,
        }
    }
}

/// Inspects all servers. A master of a cluster that is away is skipped if another one is available,
/// as it is in later calls.
async fn check_all(
    topology: &Topology,
    config: &RedisConfig,
    time: &Time,
) -> Result<Box<[Finding]>, ConnectError> {
    let address = topology.to_string();
    let primaries = time.bound(&address, topology.primaries()).await?;
    let primaries = primaries.map_err(|error| ConnectError::of(error, &address))?;
    let count = primaries.len();

    let checks = primaries.into_iter().map(|info| check(info, config, time));
    let (mut all, mut away) = (Vec::new(), Vec::new());
    for checked in join_all(checks).await {
        match checked {
            Ok(findings) => all.extend(findings),
            Err(error @ (ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. })) => {
                away.push(error);
            }
            Err(error) => return Err(error),
        }
    }
    if away.len() == count
        && let Some(error) = away.pop()
    {
        return Err(error);
    }
    for error in &away {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "Redis cluster node is unavailable; continuing without it"
        );
    }
    all.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
    Ok(all.into())
}

/// Connects, inspects the server, and closes the connection again: it belongs to the caller's
/// runtime, which need not be the one that uses the store.
///
/// The accepted findings are logged and returned.
async fn check(
    info: ConnectionInfo,
    config: &RedisConfig,
    time: &Time,
) -> Result<Box<[Finding]>, ConnectError> {
    let address = info.addr().to_string().into_boxed_str();
    let findings = time.bound(&address, look(info, &address, config)).await??;
    if config.safety == Safety::Refuse {
        let is_fatal = |finding: &&Finding| finding.severity() == Severity::Breaks;
        let fatal: Box<[_]> = findings.iter().filter(is_fatal).cloned().collect();
        if !fatal.is_empty() {
            return Err(ConnectError::Unsafe { address, findings: fatal });
        }
    }
    findings.iter().for_each(tell);
    Ok(findings.into())
}

async fn look(
    info: ConnectionInfo,
    address: &str,
    config: &RedisConfig,
) -> Result<Vec<Finding>, ConnectError> {
    let failed = |error| ConnectError::of(error, address);
    let mut connection = connection::open(info).await.map_err(failed)?;
    if config.safety == Safety::Off {
        return Ok(Vec::new());
    }
    let seen = Seen::ask(&mut connection, config).await.map_err(failed)?;
    Ok(judge::findings(&seen, address, config))
}

/// The time limit of connecting the store.
struct Time {
    limit: Duration,
    ends: Instant,
}

impl Time {
    fn new(limit: Duration) -> Self {
        Self { limit, ends: Instant::now() + limit.min(LONGEST) }
    }

    /// Returns whether more than this time is left.
    fn allows(&self, pause: Duration) -> bool {
        Instant::now() + pause < self.ends
    }

    async fn bound<T>(
        &self,
        address: &str,
        asked: impl Future<Output = T>,
    ) -> Result<T, ConnectError> {
        timeout_at(self.ends, asked).await.map_err(|_| ConnectError::TimedOut {
            address: address.into(),
            after: self.limit,
            source: None,
        })
    }
}

fn tell(finding: &Finding) {
    let (address, kind) = (finding.address(), finding.kind());
    match finding.severity() {
        Severity::Breaks | Severity::Loses => {
            tracing::warn!(address, ?kind, "unsafe Redis configuration: {finding}");
        }
        Severity::Notice => tracing::info!(address, ?kind, "inspected Redis: {finding}"),
    }
}
