//! Fuzz target: what a server reports about itself.

use std::time::Duration;

use super::evaluate::findings;
use super::permissions::DeniedPermissions;
use super::report::{Info, ServerReport, clock_skew};
use super::{FindingKind, Severity};
use crate::RedisConfig;

/// The time of the client, since 1970.
const CLIENT_TIME: Duration = Duration::from_secs(1_800_000_000);

/// The first bytes are the server's time; the others are the text of `INFO`, in which lines with `=` are
/// settings.
#[test]
fn report() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/report")).for_each(
        |bytes: &[u8]| {
            let Some((times, text)) = bytes.split_first_chunk::<16>() else { return };
            let [seconds, micros] = [&times[..8], &times[8..]]
                .map(|bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")));
            let text = String::from_utf8_lossy(text).into_owned();
            let settings = text.lines().filter_map(|line| line.split_once('='));
            let settings = settings.map(|(name, value)| (name.into(), value.into())).collect();
            let report = ServerReport {
                settings: Some(settings),
                info: Some(Info::new(text)),
                clock_skew: Some(clock_skew(CLIENT_TIME, (seconds, micros), CLIENT_TIME)),
                denied: DeniedPermissions::default(),
                bucket_counts: Vec::new(),
            };
            let config = RedisConfig::new("redis://127.0.0.1");
            check_findings(&report, &config.clone().with_wait_aof(1, Duration::from_secs(1)));
            check_findings(&report, &config);
        },
    );
}

/// The servers on which the protocol does not hold are refused.
fn check_findings(report: &ServerReport, config: &RedisConfig) {
    let findings = findings(report, "127.0.0.1:6379", config);
    assert!(findings.is_sorted_by(|one, next| one.severity() >= next.severity()));
    let has =
        |kind| findings.iter().any(|it| it.kind() == kind && it.severity() == Severity::Unsafe);
    let info = report.info.as_ref().expect("a report");
    for name in ["maxmemory", "maxmemory_policy", "role", "redis_version"] {
        assert!(!info.field(name).unwrap_or_default().contains('\n'));
    }
    assert_eq!(has(FindingKind::Replica), info.field("role") == Some("slave"));
    let evicts = info.field("maxmemory").is_some_and(|bytes| bytes != "0")
        && info.field("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
    assert_eq!(has(FindingKind::Eviction), evicts);
    if info.is_too_old() {
        assert!(has(FindingKind::Version));
    }
    for finding in &findings {
        assert!(!finding.to_string().is_empty());
    }
}
