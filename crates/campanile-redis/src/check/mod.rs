//! The look at a server before it is relied on.
//!
//! `seen` asks it, `permissions` asks what its user may do, `judge` makes findings of that; which of
//! them refuse the server is decided here. `witness` looks again over each new connection: whether
//! the server still has what it acknowledged.

mod finding;
mod judge;
mod permissions;
mod seen;
mod witness;

use futures_util::future::join_all;
use redis::ConnectionInfo;

pub use self::finding::{Finding, FindingKind, Safety, Severity};
use self::seen::Seen;
pub(crate) use self::witness::{Unmet, Witness};
use crate::connection;
use crate::topology::Topology;
use crate::{ConnectError, RedisConfig};

/// Looks at each server that takes writes; gives what was found and is accepted.
///
/// A master of a cluster that is away is passed over, as it is later, if another one is there.
pub(crate) async fn check_all(
    topology: &Topology,
    config: &RedisConfig,
) -> Result<Box<[Finding]>, ConnectError> {
    let after = config.connect_timeout;
    let late = || ConnectError::TimedOut { address: topology.to_string().into(), after };
    let primaries = tokio::time::timeout(after, topology.primaries()).await.map_err(|_| late())?;
    let unreachable =
        |source| ConnectError::Unreachable { address: topology.to_string().into(), source };
    let primaries = primaries.map_err(unreachable)?;
    let count = primaries.len();

    let checks = primaries.into_iter().map(|info| check(info, config));
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
            "a node of the Redis cluster is away"
        );
    }
    all.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
    Ok(all.into())
}

/// Connects, looks, and closes the connection again: it lives on the caller's runtime, which need
/// not be the one that will use the store.
///
/// Gives what was found and is accepted, and tells it as events.
async fn check(info: ConnectionInfo, config: &RedisConfig) -> Result<Box<[Finding]>, ConnectError> {
    let address = info.addr().to_string().into_boxed_str();
    let after = config.connect_timeout;
    let findings = match tokio::time::timeout(after, look(info, &address, config)).await {
        Ok(findings) => findings?,
        Err(_) => return Err(ConnectError::TimedOut { address, after }),
    };
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

fn tell(finding: &Finding) {
    let (address, kind) = (finding.address(), finding.kind());
    match finding.severity() {
        Severity::Breaks | Severity::Loses => {
            tracing::warn!(address, ?kind, "Redis is not set up safely: {finding}");
        }
        Severity::Notice => tracing::info!(address, ?kind, "looked at Redis: {finding}"),
    }
}
