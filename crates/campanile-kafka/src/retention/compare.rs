//! How long records and entries are kept, and whether records outlive their entries.

use std::fmt;
use std::time::Duration;

use super::describe::TopicConfig;

/// How long something is kept. Not part of the public contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionTime {
    /// It is deleted after this time.
    For(Duration),
    /// It is never deleted.
    Forever,
}

impl RetentionTime {
    /// Reads how long a topic keeps its records. `None` if the settings do not say.
    pub fn of_topic(config: &TopicConfig) -> Option<Self> {
        // A topic that is only compacted never deletes the last record of each key.
        let deletes = config.get("cleanup.policy")?.split(',').any(|p| p.trim() == "delete");
        match config.get("retention.ms")?.parse::<i64>().ok()? {
            _ if !deletes => Some(Self::Forever),
            ms => Some(
                u64::try_from(ms).map_or(Self::Forever, |ms| Self::For(Duration::from_millis(ms))),
            ),
        }
    }

    /// Checks whether a record that is kept this long can be read again after its entry, which is kept
    /// for `entries`, has expired.
    pub fn outlives(self, entries: Duration) -> bool {
        match self {
            Self::For(records) => records > entries,
            Self::Forever => true,
        }
    }
}

/// Formats the time in the largest unit that represents it exactly.
impl fmt::Display for RetentionTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::For(time) = self else {
            return f.write_str("forever");
        };
        let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
        let fits = |(unit, _): &(u64, _)| time.subsec_nanos() == 0 && time.as_secs() % unit == 0;
        match units.into_iter().find(fits) {
            Some((unit, name)) => write!(f, "{} {name}", time.as_secs() / unit),
            None => write!(f, "{time:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn kept(policy: &str, ms: &str) -> Option<RetentionTime> {
        RetentionTime::of_topic(&TopicConfig::from_iter([
            ("cleanup.policy", policy),
            ("retention.ms", ms),
        ]))
    }

    #[test]
    fn record_retention_is_the_topic_retention_or_forever() {
        assert_eq!(kept("delete", "86400000"), Some(RetentionTime::For(DAY)));
        assert_eq!(kept("compact,delete", "86400000"), Some(RetentionTime::For(DAY)));
        assert_eq!(kept("compact, delete", "-1"), Some(RetentionTime::Forever));
        assert_eq!(kept("delete", "-1"), Some(RetentionTime::Forever));
        assert_eq!(kept("compact", "86400000"), Some(RetentionTime::Forever));
        assert_eq!(kept("delete", "?"), None);
        assert_eq!(
            RetentionTime::of_topic(&TopicConfig::from_iter([("cleanup.policy", "delete")])),
            None
        );
    }

    #[test]
    fn entries_kept_as_long_as_records_are_sufficient() {
        assert!(!RetentionTime::For(DAY).outlives(DAY));
        assert!(RetentionTime::For(DAY).outlives(DAY - Duration::from_secs(1)));
        assert!(RetentionTime::Forever.outlives(DAY * 3650));
    }

    #[test]
    fn time_is_shown_in_the_largest_exact_unit() {
        let text = |seconds| RetentionTime::For(Duration::from_secs(seconds)).to_string();
        assert_eq!([text(604_800), text(90_000), text(120)], ["7 d", "25 h", "2 min"]);
        assert_eq!([text(61), RetentionTime::Forever.to_string()], ["61s", "forever"]);
    }
}
