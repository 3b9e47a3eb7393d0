//! The look at a server before it is relied on.

use redis::{AsyncConnectionConfig, Client, ConnectionInfo, cmd};

use crate::{ConnectError, RedisConfig};

/// The oldest server on which the scripts run: earlier ones have no `SET` with `NX` and `GET`.
const OLDEST: u32 = 7;

/// Connects, looks, and closes the connection again: it lives on the caller's runtime, which need
/// not be the one that will use the store.
pub(crate) async fn probe(info: ConnectionInfo, config: &RedisConfig) -> Result<(), ConnectError> {
    let address = info.addr().to_string();
    let after = config.connect_timeout;
    match tokio::time::timeout(after, info_text(info, &address)).await {
        Ok(info) => judge(&info?, &address, config),
        Err(_) => Err(ConnectError::TimedOut { address: address.into(), after }),
    }
}

async fn info_text(info: ConnectionInfo, address: &str) -> Result<String, ConnectError> {
    // The time of the whole probe is bounded by its caller.
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let client = Client::open(info).map_err(ConnectError::url)?;
    let failed = |error| ConnectError::of(error, address);
    let mut connection =
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
    cmd("INFO").query_async(&mut connection).await.map_err(failed)
}

/// Refuses a server that would not do what the protocol needs.
fn judge(info: &str, address: &str, config: &RedisConfig) -> Result<(), ConnectError> {
    let unsupported = |reason: String| {
        Err(ConnectError::Unsupported { address: address.into(), reason: reason.into() })
    };
    let version = field(info, "redis_version").unwrap_or("unknown");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < OLDEST) {
        return unsupported(format!("its version is {version}, and {OLDEST}.0 or later is needed"));
    }
    if field(info, "cluster_enabled") == Some("1") {
        return unsupported("it is a node of a cluster, and this store is for one server".into());
    }
    let policy = field(info, "maxmemory_policy").unwrap_or("noeviction");
    let is_limited = field(info, "maxmemory").is_some_and(|bytes| bytes != "0");
    if is_limited && policy != "noeviction" {
        if !config.lossy_eviction {
            return Err(ConnectError::Evicts { address: address.into(), policy: policy.into() });
        }
        tracing::warn!(
            address,
            policy,
            "Redis evicts keys: locks and completions may vanish silently"
        );
    }
    Ok(())
}

/// A line `name:value` of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(info: &str) -> String {
        match judge(info, "r:1", &RedisConfig::new("redis://r:1")) {
            Ok(()) => "accepted".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn only_servers_from_7_0_on_are_accepted() {
        assert_eq!(judged("# Server\r\nredis_version:7.0.15\r\n"), "accepted");
        assert_eq!(judged("redis_version:10.2.0\r\n"), "accepted");
        assert_eq!(
            judged("redis_version:6.2.14\r\n"),
            "Redis at r:1: its version is 6.2.14, and 7.0 or later is needed"
        );
        assert!(judged("").contains("unknown"));
    }

    #[test]
    fn eviction_counts_only_under_a_limit() {
        let judged = |limit, policy| {
            judged(&format!(
                "redis_version:7.0.0\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n"
            ))
        };
        assert_eq!(judged(0, "allkeys-lru"), "accepted");
        assert_eq!(judged(1, "noeviction"), "accepted");
        assert!(judged(1, "volatile-ttl").contains("volatile-ttl"));
    }
}
