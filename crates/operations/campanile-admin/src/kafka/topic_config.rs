//! The settings of a topic or a broker.

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::admin::ConfigResource;

/// The settings of a topic or a broker, as the brokers report them.
pub(crate) struct TopicConfig(HashMap<String, String>);

impl TopicConfig {
    /// Returns the value of a setting.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Reads how long a topic keeps its records, which is [`Duration::MAX`] if it never deletes them.
    /// `None` if the settings do not say.
    pub(crate) fn retention(&self) -> Option<Duration> {
        // A topic that is only compacted never deletes the last record of each key.
        let deletes = self.get("cleanup.policy")?.split(',').any(|it| it.trim() == "delete");
        let ms = self.get("retention.ms")?.parse::<i64>().ok()?;
        let ms = u64::try_from(ms).ok().filter(|_| deletes);
        Some(ms.map_or(Duration::MAX, Duration::from_millis))
    }
}

impl From<ConfigResource> for TopicConfig {
    fn from(resource: ConfigResource) -> Self {
        let settings = resource.entries.into_iter();
        Self(settings.filter_map(|entry| Some((entry.name, entry.value?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn kept(settings: &[(&str, &str)]) -> Option<Duration> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        TopicConfig(settings.iter().map(owned).collect()).retention()
    }

    #[test]
    fn records_are_kept_for_the_topic_retention_or_forever() {
        let kept_by = |policy, ms| kept(&[("cleanup.policy", policy), ("retention.ms", ms)]);
        assert_eq!(kept_by("delete", "86400000"), Some(DAY));
        assert_eq!(kept_by("compact,delete", "86400000"), Some(DAY));
        assert_eq!(kept_by("compact, delete", "-1"), Some(Duration::MAX));
        assert_eq!(kept_by("delete", "-1"), Some(Duration::MAX));
        assert_eq!(kept_by("compact", "86400000"), Some(Duration::MAX));
        assert_eq!(kept_by("delete", "?"), None);
        assert_eq!(kept(&[("cleanup.policy", "delete")]), None);
    }
}
