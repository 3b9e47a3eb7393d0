//! How long records and entries are kept, and whether records outlive their entries.

use std::fmt;
use std::time::Duration;

use super::ask::Config;

/// How long something is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    For(Duration),
    Ever,
}

impl Kept {
    /// Returns how long a topic keeps its records. `None` if the settings do not say.
    pub(super) fn of(config: &Config) -> Option<Self> {
        // A topic that is only compacted never deletes the last record of each key.
        let deletes = config.get("cleanup.policy")?.split(',').any(|p| p.trim() == "delete");
        match config.get("retention.ms")?.parse::<i64>().ok()? {
            _ if !deletes => Some(Self::Ever),
            ms => Some(
                u64::try_from(ms).map_or(Self::Ever, |ms| Self::For(Duration::from_millis(ms))),
            ),
        }
    }
}

/// Returns whether a record that is kept this long can be read again after its entry has expired.
pub(super) fn too_long(records: Kept, entries: Duration) -> bool {
    match records {
        Kept::For(records) => records > entries,
        Kept::Ever => true,
    }
}

/// Formats the time in the largest unit that represents it exactly.
impl fmt::Display for Kept {
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

    fn kept(policy: &str, ms: &str) -> Option<Kept> {
        Kept::of(&Config::from_iter([("cleanup.policy", policy), ("retention.ms", ms)]))
    }

    #[test]
    fn records_are_kept_for_the_topics_retention_or_for_ever() {
        assert_eq!(kept("delete", "86400000"), Some(Kept::For(DAY)));
        assert_eq!(kept("compact,delete", "86400000"), Some(Kept::For(DAY)));
        assert_eq!(kept("compact, delete", "-1"), Some(Kept::Ever));
        assert_eq!(kept("delete", "-1"), Some(Kept::Ever));
        assert_eq!(kept("compact", "86400000"), Some(Kept::Ever));
        assert_eq!(kept("delete", "?"), None);
        assert_eq!(Kept::of(&Config::from_iter([("cleanup.policy", "delete")])), None);
    }

    #[test]
    fn entries_that_are_kept_for_as_long_as_the_records_are_kept_for_long_enough() {
        assert!(!too_long(Kept::For(DAY), DAY));
        assert!(too_long(Kept::For(DAY), DAY - Duration::from_secs(1)));
        assert!(too_long(Kept::Ever, DAY * 3650));
    }

    #[test]
    fn a_time_is_told_in_the_largest_unit_that_says_it_exactly() {
        let text = |seconds| Kept::For(Duration::from_secs(seconds)).to_string();
        assert_eq!([text(604_800), text(90_000), text(120)], ["7 d", "25 h", "2 min"]);
        assert_eq!([text(61), Kept::Ever.to_string()], ["61s", "forever"]);
    }
}
