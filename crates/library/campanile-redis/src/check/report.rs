//! What a server reports about itself.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use campanile_core::Namespace;
use redis::aio::MultiplexedConnection;
use redis::{
    FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value, cmd, from_redis_value, pipe,
};

use super::permissions::{self, DeniedPermissions};
use crate::RedisConfig;
use crate::key::bucket_count_key;

/// The settings that `INFO` does not include.
const SETTINGS: [&str; 4] =
    ["save", "appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write"];

/// The settings in `INFO`, each with the name of its field.
const INFO_SETTINGS: [(&str, &str); 6] = [
    ("version", "redis_version"),
    ("cluster-enabled", "cluster_enabled"),
    ("role", "role"),
    ("maxmemory", "maxmemory"),
    ("maxmemory-policy", "maxmemory_policy"),
    ("appendonly", "aof_enabled"),
];

/// What a server reports about itself. `None` for anything that it does not report.
#[derive(Default)]
pub(super) struct ServerReport {
    pub(super) info: Option<Info>,
    pub(super) settings: Option<HashMap<String, String>>,
    pub(super) denied: DeniedPermissions,
    /// The recorded bucket counts of the store's namespaces, as far as they are known to this server.
    pub(super) bucket_counts: Vec<(Namespace, u16)>,
    /// The minimum difference between the server's clock and the client's.
    pub(super) clock_skew: Option<Duration>,
}

/// The reply to `INFO`.
pub(crate) struct Info(String);

impl ServerReport {
    /// Queries the server. A query that the server or its ACL forbids is not an error.
    pub(super) async fn query(
        connection: &mut MultiplexedConnection,
        config: &RedisConfig,
    ) -> RedisResult<Self> {
        let mut report = Self::query_settings(connection).await?;
        // An older server has no command to ask, and is refused for its version.
        if !report.info.as_ref().is_some_and(Info::is_too_old) {
            report.denied = permissions::query_denied(connection, config).await?;
        }
        report.bucket_counts = read_bucket_counts(connection, &config.namespaces).await;
        report.clock_skew = measure_clock_skew(connection).await?;
        Ok(report)
    }

    /// Queries only the settings, in one pipeline.
    pub(super) async fn query_settings(
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<Self> {
        let mut queries = pipe();
        queries.cmd("INFO").cmd("CONFIG").arg("GET").arg(&SETTINGS);
        let replies = connection.send_packed_commands(&queries, 0, queries.len()).await?;
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil).extract_error();
        let info = none_if_forbidden(next().and_then(|reply| Ok(from_redis_value(reply)?)))?;
        let settings = none_if_forbidden(next().and_then(|reply| Ok(from_redis_value(reply)?)))?;
        Ok(Self { info: info.map(Info::new), settings, ..Self::default() })
    }

    /// The settings on which the findings depend, as far as the server reports them.
    pub(super) fn watched_settings(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let reported = |&(name, field): &(_, &str)| Some((name, self.info.as_ref()?.field(field)?));
        let info = INFO_SETTINGS.iter().filter_map(reported);
        info.chain(SETTINGS.iter().filter_map(|&name| Some((name, self.setting(name)?))))
    }

    /// The value of a setting that `INFO` does not include.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref()?.get(name).map(String::as_str)
    }

    /// The commands that the server does not answer.
    pub(super) fn unanswered(&self) -> Vec<&'static str> {
        let queries = [(self.info.is_none(), "INFO"), (self.settings.is_none(), "CONFIG GET")];
        queries
            .into_iter()
            .filter_map(|(is_unanswered, query)| is_unanswered.then_some(query))
            .collect()
    }
}

impl Info {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The value in a line `name:value`.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
    }

    pub(super) fn version(&self) -> &str {
        self.field("redis_version").unwrap_or("unknown")
    }

    /// Checks whether the server is older than this version. Valkey reports the version of Redis
    /// that it was forked from.
    pub(super) fn is_before(&self, oldest: (u32, u32)) -> bool {
        let mut numbers = self.version().split('.').map_while(|number| number.parse::<u32>().ok());
        numbers.next().zip(numbers.next()).is_none_or(|version| version < oldest)
    }

    /// Checks whether the server is too old for the scripts: before 7.0, `SET` did not combine `NX`
    /// and `GET`.
    pub(super) fn is_too_old(&self) -> bool {
        self.is_before((7, 0))
    }
}

/// Maps an error to `None` if the command is forbidden or unknown to the server. Some providers
/// forbid a command by removing it.
fn none_if_forbidden<T: FromRedisValue>(answer: RedisResult<T>) -> RedisResult<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_forbidden(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks whether the server forbids this user, or any user, to send the command.
pub(super) fn is_forbidden(error: &RedisError) -> bool {
    match error.kind() {
        redis::ErrorKind::Server(ServerErrorKind::NoPerm) => true,
        _ => error.detail().is_some_and(|text| text.starts_with("unknown command")),
    }
}

/// Reads the bucket count that each namespace was first used with. A namespace that is new, that the
/// user may not read, or whose count another node of the cluster has, is left out. Over a connection
/// that breaks, the next query fails.
async fn read_bucket_counts(
    connection: &mut MultiplexedConnection,
    namespaces: &[Namespace],
) -> Vec<(Namespace, u16)> {
    let mut counts = Vec::new();
    for namespace in namespaces {
        let count = cmd("GET").arg(bucket_count_key(namespace)).query_async(connection).await;
        if let Ok(Some(count)) = count {
            counts.push((namespace.clone(), count));
        }
    }
    counts
}

/// Measures the minimum difference between the server's clock and the client's: the server's
/// reading was taken between two readings of the client's.
async fn measure_clock_skew(
    connection: &mut MultiplexedConnection,
) -> RedisResult<Option<Duration>> {
    let before = client_time();
    let time = cmd("TIME").query_async::<(u64, u64)>(connection).await;
    let Some(time) = none_if_forbidden(time)? else {
        return Ok(None);
    };
    Ok(Some(clock_skew(before, time, client_time())))
}

/// Computes the distance of the server's time, in seconds and microseconds, from the interval in which
/// the client has received it.
pub(super) fn clock_skew(before: Duration, time: (u64, u64), after: Duration) -> Duration {
    let (seconds, micros) = time;
    let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    before.saturating_sub(time).max(time.saturating_sub(after))
}

#[expect(
    clippy::disallowed_methods,
    reason = "compared with the server's clock and the end of a certificate, to report; decides nothing"
)]
pub(super) fn client_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::connector::{Endpoint, Secrets};
    use crate::simulation::{Reply, ScriptedServers};

    #[tokio::test]
    async fn too_old_server_is_not_asked_for_permissions() {
        let servers = ScriptedServers::start(|_, words| match words {
            ["INFO"] => Some(Reply::text("redis_version:6.2.14\r\n")),
            ["CONFIG", ..] => Some(Reply::Array(vec![])),
            ["TIME"] => Some(Reply::Array(vec![Reply::text("0"), Reply::text("0")])),
            _ => None,
        });
        let info = "redis://a:1".into_connection_info().unwrap();
        let server = Endpoint::new(info, Secrets::default());
        let mut connection = server.open().await.unwrap();
        let config = RedisConfig::new("redis://a:1");
        let report = ServerReport::query(&mut connection, &config).await.unwrap();
        assert_eq!(report.denied, DeniedPermissions::default());
        assert!(servers.received("EVAL").is_empty());
    }

    #[test]
    fn clock_skew_is_distance_from_the_interval() {
        let (before, after) = (Duration::from_secs(100), Duration::from_secs(103));
        let skew = |seconds, micros| clock_skew(before, (seconds, micros), after);
        assert_eq!(skew(98, 500_000), Duration::from_millis(1500));
        assert_eq!(skew(101, 0), Duration::ZERO);
        assert_eq!(skew(104, 1), Duration::from_micros(1_000_001));
    }

    #[test]
    fn only_a_forbidden_or_unknown_command_has_no_answer() {
        let answer = |reply: &str| {
            let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
            none_if_forbidden::<String>(reply.extract_error().map(|value| panic!("{value:?}")))
        };
        assert_eq!(answer("NOPERM this user has no permissions").unwrap(), None);
        assert_eq!(answer("ERR unknown command 'CONFIG'").unwrap(), None);
        assert!(answer("LOADING Redis is loading the dataset in memory").is_err());
        assert_eq!(none_if_forbidden(Ok(1)).unwrap(), Some(1));
    }

    #[test]
    fn server_time_out_of_range_is_a_skew() {
        let second = Duration::from_secs(1);
        let skew = clock_skew(second, (u64::MAX, u64::MAX), second);
        assert_eq!(skew, Duration::MAX - second);
    }
}
