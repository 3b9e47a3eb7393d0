//! The settings, from environment variables, except those of the consumer.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The prefix of the variables for librdkafka's settings, which `ConsumerConfig::from_env` reads:
/// `BILLING_KAFKA_BOOTSTRAP_SERVERS` and `BILLING_KAFKA_GROUP_ID` are required. No other setting may
/// have this prefix. In Kubernetes, a service with the name `kafka` sets variables that begin with
/// `KAFKA_`.
pub(crate) const KAFKA_PREFIX: &str = "BILLING_KAFKA_";

/// The settings of the service. An empty variable is one that is not set.
#[derive(Debug, PartialEq)]
pub(crate) struct Settings {
    /// `BILLING_TOPIC`. Default: `payments`.
    pub(crate) topic: String,
    /// `BILLING_DEAD_LETTER_TOPIC`. Default: the topic's name and `.dead`.
    pub(crate) dead_letter_topic: String,
    /// `REDIS_URL`, required.
    pub(crate) redis_url: String,
    /// `DATABASE_URL`, required.
    pub(crate) database_url: String,
    /// `LOCK_TTL_SECONDS`: how long the payments of a crashed process wait. Default: 30 s.
    pub(crate) lock_ttl: Duration,
    /// `HEALTH_ADDRESS`: where the probes are answered. Default: port 8080 of all interfaces.
    pub(crate) health_address: SocketAddr,
    /// `METRICS_ADDRESS`: where Prometheus scrapes the metrics. Default: port 9000 of all interfaces.
    pub(crate) metrics_address: SocketAddr,
}

impl Settings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// Fails if a required variable is not set or a value is invalid.
    pub(crate) fn from_env() -> Result<Self, InvalidSetting> {
        Self::read(|name| {
            let value = std::env::var_os(name)?;
            // Invalid UTF-8 is in no valid setting; the error shows it.
            Some(value.to_string_lossy().into_owned())
        })
    }

    fn read(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, InvalidSetting> {
        let optional = |name| variable(name).filter(|value| !value.is_empty());
        // Values of these are not shown in errors: URLs contain passwords.
        let required =
            |name| optional(name).ok_or(InvalidSetting { name, problem: "must be set".into() });
        let or = |name, default: &str| optional(name).unwrap_or_else(|| default.to_owned());

        let topic = or("BILLING_TOPIC", "payments");
        let lock_ttl =
            parse("LOCK_TTL_SECONDS", &or("LOCK_TTL_SECONDS", "30"), SECONDS, |value| {
                value.parse().ok().filter(|seconds| (1..=3600).contains(seconds))
            })?;
        let address =
            |name, default| parse(name, &or(name, default), ADDRESS, |value| value.parse().ok());
        Ok(Self {
            dead_letter_topic: or("BILLING_DEAD_LETTER_TOPIC", &format!("{topic}.dead")),
            topic,
            redis_url: required("REDIS_URL")?,
            database_url: required("DATABASE_URL")?,
            lock_ttl: Duration::from_secs(lock_ttl),
            health_address: address("HEALTH_ADDRESS", "0.0.0.0:8080")?,
            metrics_address: address("METRICS_ADDRESS", "0.0.0.0:9000")?,
        })
    }
}

const SECONDS: &str = "a whole number of seconds from 1 to 3600, such as 30";
const ADDRESS: &str = "an address and a port, such as 0.0.0.0:8080";

fn parse<T>(
    name: &'static str,
    value: &str,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, InvalidSetting> {
    let problem = || format!("must be {expected}, but is `{value}`");
    parse(value).ok_or_else(|| InvalidSetting { name, problem: problem() })
}

/// An environment variable that is missing or has an invalid value.
#[derive(Debug, PartialEq)]
pub(crate) struct InvalidSetting {
    name: &'static str,
    problem: String,
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the environment variable {} {}", self.name, self.problem)
    }
}

impl std::error::Error for InvalidSetting {}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    const REQUIRED: [(&str, &str); 2] =
        [("REDIS_URL", "redis://redis"), ("DATABASE_URL", "postgres://db/billing")];
    const REQUIRED_BY_KAFKA: [&str; 2] = ["BOOTSTRAP_SERVERS", "GROUP_ID"];

    /// Reads the required settings and this one.
    fn read(name: &str, value: &str) -> Result<Settings, String> {
        let variables = [(name, value)].into_iter().chain(REQUIRED);
        let variable = |wanted: &str| {
            let (_, value) = variables.clone().find(|(name, _)| *name == wanted)?;
            Some(value.to_owned())
        };
        Settings::read(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_without_a_value_have_their_defaults() {
        let settings = read("BILLING_TOPIC", "refunds").unwrap();
        assert_eq!((&*settings.topic, &*settings.dead_letter_topic), ("refunds", "refunds.dead"));
        assert_eq!(settings.lock_ttl, Duration::from_secs(30));
        assert_eq!(settings.health_address.port(), 8080);
        assert_eq!(settings.metrics_address.port(), 9000);
        assert_eq!(read("BILLING_TOPIC", ""), read("OTHER", ""), "an empty value counts as none");
    }

    #[test]
    fn missing_setting_is_named() {
        for (name, _) in REQUIRED {
            let error = read(name, "").unwrap_err();
            assert_eq!(error, format!("the environment variable {name} must be set"));
        }
    }

    #[test]
    fn invalid_setting_is_named_with_its_value() {
        for value in ["30s", "0", "3601", "-1", "1.5"] {
            let error = read("LOCK_TTL_SECONDS", value).unwrap_err();
            assert_eq!(
                error,
                format!(
                    "the environment variable LOCK_TTL_SECONDS must be {SECONDS}, but is `{value}`"
                )
            );
        }
        let error = read("HEALTH_ADDRESS", "8080").unwrap_err();
        assert!(error.contains("HEALTH_ADDRESS must be an address and a port"), "{error}");
    }

    #[test]
    fn deployment_names_the_ports() {
        let deployment = include_str!("../kubernetes.yaml");
        let settings = read("OTHER", "").unwrap();
        for (name, address) in
            [("health", settings.health_address), ("metrics", settings.metrics_address)]
        {
            let port = format!("- {{ name: {name}, containerPort: {} }}", address.port());
            assert!(deployment.contains(&port), "{port}");
        }
    }

    #[test]
    fn deployment_sets_only_variables_that_are_read() {
        let names = RefCell::new(BTreeSet::from(["RUST_LOG"]));
        let settings = Settings::read(|name| {
            names.borrow_mut().insert(name);
            REQUIRED.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        });
        assert!(settings.is_ok());
        let names = names.into_inner();
        let deployment = include_str!("../kubernetes.yaml");
        let is_variable = |name: &&str| name.contains('_') && !name.contains(char::is_lowercase);
        let (command, own): (BTreeSet<&str>, BTreeSet<&str>) = deployment
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- name: "))
            // without the comment
            .filter_map(|name| name.split_whitespace().next())
            .filter(is_variable)
            .partition(|name| name.starts_with("CAMPANILE_"));
        let documented = include_str!("../../../docs/inspect-and-repair.md");
        assert!(!command.is_empty() && command.iter().all(|name| documented.contains(name)));
        let (kafka, set): (BTreeSet<&str>, BTreeSet<&str>) =
            own.into_iter().partition(|name| name.starts_with(KAFKA_PREFIX));
        let kafka: Vec<&str> =
            kafka.iter().filter_map(|name| name.strip_prefix(KAFKA_PREFIX)).collect();
        assert_eq!(kafka, REQUIRED_BY_KAFKA);
        assert!(set.is_subset(&names), "{set:?}");
        assert!(REQUIRED.iter().all(|(name, _)| set.contains(name)), "{set:?}");
    }
}
