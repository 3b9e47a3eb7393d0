//! The look at a server before it is relied on.
//!
//! `seen` asks it, `permissions` asks what its user may do, `judge` makes findings of that; which of
//! them refuse the server is decided here.

mod finding;
mod judge;
mod permissions;
mod seen;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo};

pub use self::finding::{Finding, FindingKind, Safety, Severity};
use self::seen::Seen;
use crate::{ConnectError, RedisConfig};

/// Connects, looks, and closes the connection again: it lives on the caller's runtime, which need
/// not be the one that will use the store.
///
/// Gives what was found and is accepted, and tells it as events.
pub(crate) async fn check(
    info: ConnectionInfo,
    config: &RedisConfig,
) -> Result<Box<[Finding]>, ConnectError> {
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
    let mut connection = open(info).await.map_err(failed)?;
    if config.safety == Safety::Off {
        return Ok(Vec::new());
    }
    let seen = Seen::ask(&mut connection, config).await.map_err(failed)?;
    Ok(judge::findings(&seen, address, config))
}

async fn open(info: ConnectionInfo) -> redis::RedisResult<MultiplexedConnection> {
    // The time of the whole look is bounded by its caller.
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
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
