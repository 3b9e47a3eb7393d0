//! The settings of a store in a configuration file.

use campanile_core::{HumanDuration, Namespace};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::{RedisConfig, Safety};

#[derive(Deserialize)]
#[serde(rename = "RedisConfig", deny_unknown_fields)]
struct Fields {
    url: Option<String>,
    sentinel: Option<Sentinel>,
    cluster: Option<Vec<String>>,
    credentials: Option<Credentials>,
    server_tls: Option<bool>,
    connect_timeout: Option<HumanDuration>,
    command_timeout: Option<HumanDuration>,
    buckets: Option<u16>,
    safety: Option<Safety>,
    #[serde(default)]
    namespaces: Vec<String>,
    wait: Option<Wait>,
    wait_aof: Option<Wait>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sentinel {
    name: String,
    urls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Credentials {
    user: String,
    #[serde(deserialize_with = "password")]
    password: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    replicas: u32,
    timeout: HumanDuration,
}

/// Reads a password. The error for a value of another type does not show the value.
fn password<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map_err(|_| Error::custom("`password` must be a string"))
}

impl<'de> Deserialize<'de> for RedisConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        let mut config = match (fields.url, fields.sentinel, fields.cluster) {
            (Some(url), None, None) => Self::new(url),
            (None, Some(Sentinel { name, urls }), None) => Self::sentinel(name, urls),
            (None, None, Some(urls)) => Self::cluster(urls),
            _ => {
                return Err(Error::custom(
                    "exactly one of `url`, `sentinel` and `cluster` must be set",
                ));
            }
        };
        if let Some(Credentials { user, password }) = fields.credentials {
            config = config.with_credentials(user, password);
        }
        if let Some(tls) = fields.server_tls {
            config = config.with_server_tls(tls);
        }
        if let Some(HumanDuration(timeout)) = fields.connect_timeout {
            config = config.with_connect_timeout(timeout);
        }
        if let Some(HumanDuration(timeout)) = fields.command_timeout {
            config = config.with_command_timeout(timeout);
        }
        if let Some(count) = fields.buckets {
            config = config.with_buckets(count);
        }
        if let Some(safety) = fields.safety {
            config = config.with_safety(safety);
        }
        let namespaces: Result<Vec<_>, _> =
            fields.namespaces.into_iter().map(Namespace::try_from).collect();
        config = config.with_namespaces(namespaces.map_err(Error::custom)?);
        match (fields.wait, fields.wait_aof) {
            (None, None) => Ok(config),
            (Some(Wait { replicas, timeout }), None) => Ok(config.with_wait(replicas, timeout.0)),
            (None, Some(Wait { replicas, timeout })) => {
                Ok(config.with_wait_aof(replicas, timeout.0))
            }
            (Some(_), Some(_)) => Err(Error::custom("`wait` and `wait_aof` exclude each other")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait::{Durability, DurabilityLevel};

    fn parse(json: &str) -> Result<RedisConfig, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn deserialized_fields_have_the_names_of_the_methods() {
        let config = parse(
            r#"{
                "url": "redis://redis1", "credentials": { "user": "alice", "password": "s3cret" },
                "connect_timeout": "20s", "command_timeout": "500ms", "buckets": 4,
                "safety": "warn", "namespaces": ["payments"],
                "wait": { "replicas": 1, "timeout": "100ms" }
            }"#,
        )
        .unwrap();
        let expected = RedisConfig::new("redis://redis1")
            .with_credentials("alice", "s3cret")
            .with_connect_timeout(Duration::from_secs(20))
            .with_command_timeout(Duration::from_millis(500))
            .with_buckets(4)
            .with_safety(Safety::Warn);
        let shown = format!("{config:?}");
        assert_eq!(shown, format!("{expected:?}"));
        assert!(!shown.contains("s3cret") && !shown.contains("alice"), "{shown}");
        assert_eq!(config.namespaces, [Namespace::try_from("payments").unwrap()]);
        let Some(Durability { level: DurabilityLevel::Memory, replicas: 1, timeout }) =
            config.durability
        else {
            panic!("no wait");
        };
        assert_eq!(timeout, Duration::from_millis(100));
    }

    #[test]
    fn error_for_unquoted_password_hides_it() {
        let json = r#"{ "url": "redis://r1", "credentials": { "user": "a", "password": 12345 } }"#;
        let error = parse(json).unwrap_err();
        assert!(
            error.contains("`password` must be a string") && !error.contains("12345"),
            "{error}"
        );
    }

    #[test]
    fn missing_fields_deserialize_to_the_defaults() {
        for (json, expected) in [
            (r#"{ "url": "redis://r1" }"#, RedisConfig::new("redis://r1")),
            (
                r#"{ "sentinel": { "name": "tower", "urls": ["redis://s1"] } }"#,
                RedisConfig::sentinel("tower", ["redis://s1"]),
            ),
            (r#"{ "cluster": ["redis://n1"] }"#, RedisConfig::cluster(["redis://n1"])),
        ] {
            assert_eq!(format!("{:?}", parse(json).unwrap()), format!("{expected:?}"));
        }
    }

    #[test]
    fn deserialization_error_names_the_field() {
        for (json, expected) in [
            (r#"{}"#, "exactly one of `url`"),
            (r#"{ "url": "redis://r1", "cluster": ["redis://n1"] }"#, "exactly one of `url`"),
            (r#"{ "url": "redis://r1", "timeout": "1s" }"#, "unknown field `timeout`"),
            (r#"{ "url": "redis://r1", "namespaces": ["Payments"] }"#, "Payments"),
            (
                r#"{
                    "url": "redis://r1", "wait": { "replicas": 1, "timeout": "1s" },
                    "wait_aof": { "replicas": 1, "timeout": "1s" }
                }"#,
                "`wait` and `wait_aof`",
            ),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
