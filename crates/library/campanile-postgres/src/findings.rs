//! The settings with which the server can lose what it has acknowledged.

use std::fmt;

/// An expression for the settings of the user and the database. The last one may contain spaces.
macro_rules! settings {
    () => {
        "pg_catalog.concat_ws(' ', \
            'synchronous_commit=' || pg_catalog.current_setting('synchronous_commit'), \
            'fsync=' || pg_catalog.current_setting('fsync'), \
            'full_page_writes=' || pg_catalog.current_setting('full_page_writes'), \
            'synchronous_standby_names=' || pg_catalog.current_setting('synchronous_standby_names'))"
    };
}

pub(crate) use settings;

/// The query whether standbys are connected. A user without `pg_read_all_stats` sees no more of a
/// standby than its process, which a subscriber to a logical slot, such as Debezium, also has. A base
/// backup streams by a temporary slot.
pub(crate) const HAS_STANDBYS: &str = "SELECT EXISTS ( \
    SELECT FROM pg_catalog.pg_stat_replication AS sender \
    WHERE state IS DISTINCT FROM 'backup' AND NOT EXISTS ( \
        SELECT FROM pg_catalog.pg_replication_slots \
        WHERE active_pid = sender.pid AND (slot_type = 'logical' OR temporary)))";

/// What a [`Finding`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// The server acknowledges commits that are not on its disk, or can damage them there. A crash loses them.
    Durability,
    /// Commits of this user do not wait for the synchronous standby. A failover loses them.
    SkippedStandby,
    /// All standbys follow asynchronously. A failover loses the last commits.
    AsynchronousStandbys,
}

/// A problem of a server that can lose what the store keeps there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What the finding is about.
    pub kind: FindingKind,
    /// What was seen.
    pub observed: String,
    /// What could be lost.
    pub risk: &'static str,
    /// How to fix it.
    pub remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.observed, self.risk, self.remedy)
    }
}

/// Evaluates the value of [`settings!`].
pub(crate) fn evaluate(settings: &str, has_standbys: bool) -> Vec<Finding> {
    const CRASH: &str = "a crash loses completions that were acknowledged, and their records run again \
        when they are redelivered";
    const FAILOVER: &str = "a failover loses the last completions that were acknowledged, and their \
        records run again when they are redelivered";
    const TEAR: &str =
        "a crash can damage pages that hold them, unless the storage writes each page as a whole";
    const ON: &str = "set it to `on`, for the server, the database and the user";
    const NAMES: &str = "synchronous_standby_names";
    let mut findings = Vec::new();
    let mut add = |kind, observed, risk, remedy| {
        findings.push(Finding { kind, observed, risk, remedy });
    };
    let (mut is_local, mut has_synchronous) = (false, false);
    for setting in settings.splitn(4, ' ') {
        match setting.split_once('=') {
            Some((NAMES, names)) => has_synchronous = !names.is_empty(),
            Some(("synchronous_commit", "local")) => is_local = true,
            Some((name @ "full_page_writes", "off")) => {
                add(FindingKind::Durability, format!("{name} = off"), TEAR, ON);
            }
            Some((name, "off")) => add(FindingKind::Durability, format!("{name} = off"), CRASH, ON),
            _ => {}
        }
    }
    if has_synchronous && is_local {
        let observed = format!("synchronous_commit = local, although {NAMES} is set");
        add(FindingKind::SkippedStandby, observed, FAILOVER, ON);
    }
    if has_standbys && !has_synchronous {
        let observed = format!("all standbys follow asynchronously ({NAMES} is empty)");
        add(
            FindingKind::AsynchronousStandbys,
            observed,
            FAILOVER,
            "set it to the names of standbys",
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_lose_acknowledged_writes_are_found() {
        use FindingKind::{AsynchronousStandbys, Durability, SkippedStandby};
        for (commit, fsync, names, has_standbys, expected) in [
            ("on", "on", "", false, &[][..]),
            ("local", "on", "", false, &[]),
            ("on", "on", "FIRST 1 (a, b)", true, &[]),
            ("remote_write", "on", "*", true, &[]),
            ("off", "on", "*", true, &[Durability]),
            ("on", "off", "", false, &[Durability]),
            ("local", "on", "ANY 1 (a, b)", true, &[SkippedStandby]),
            ("on", "on", "", true, &[AsynchronousStandbys]),
            ("off", "off", "", true, &[Durability, Durability, AsynchronousStandbys]),
        ] {
            let settings = format!(
                "synchronous_commit={commit} fsync={fsync} full_page_writes=on \
                 synchronous_standby_names={names}"
            );
            let found = evaluate(&settings, has_standbys);
            let kinds: Vec<_> = found.iter().map(|finding| finding.kind).collect();
            assert_eq!(kinds, expected, "{settings}");
        }
    }
}
