//! Derives findings from what was seen on a server.

use std::borrow::Cow;
use std::time::Duration;

use super::finding::{Finding, FindingKind, Severity};
use super::report::{Info, ServerReport};
use crate::RedisConfig;
use crate::wait::DurabilityLevel;

/// The largest accepted difference between a server's clock and the client's.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);

/// Derives all findings, worst first.
pub(super) fn findings(report: &ServerReport, address: &str, config: &RedisConfig) -> Vec<Finding> {
    let mut findings = Findings { address, found: Vec::new() };
    if let Some(info) = &report.info {
        findings.check_server(info, config);
        findings.check_memory(info);
        findings.check_persistence(info, report, config);
        findings.check_replication(info, report, config);
    }
    findings.check_buckets(report, config);
    findings.check_permissions(report, config);
    findings.check_clock(report);
    findings.check_unanswered(report);
    let mut found = findings.found;
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
    found
}

/// Checks whether a write must be on disk before it is answered.
fn waits_for_disk(config: &RedisConfig) -> bool {
    config.durability.is_some_and(|durability| durability.level == DurabilityLevel::Disk)
}

struct Findings<'a> {
    address: &'a str,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn check_server(&mut self, info: &Info, config: &RedisConfig) {
        if info.is_too_old() {
            self.add(
                (FindingKind::Version, Severity::Unsafe),
                format!("its version is {}", info.version()),
                "the scripts cannot run, so no lock is granted",
                "use Redis 7.0 or later, or Valkey",
            );
        } else if waits_for_disk(config) && info.is_before((7, 2)) {
            self.add(
                (FindingKind::Version, Severity::Unsafe),
                format!("its version is {}", info.version()),
                "it does not support WAITAOF, which `with_wait_aof` needs, so no lock is granted",
                "use Redis 7.2 or later, Valkey, or `with_wait`",
            );
        }
        if info.field("cluster_enabled") == Some("1") && !config.is_cluster() {
            self.add(
                (FindingKind::Cluster, Severity::Unsafe),
                "the server is a node of a cluster (cluster-enabled yes)",
                "it has only some of the keys and refuses all others",
                "use `RedisConfig::cluster`",
            );
        }
    }

    fn check_memory(&mut self, info: &Info) {
        let policy = info.field("maxmemory_policy").unwrap_or("noeviction");
        let is_limited = info.field("maxmemory").is_some_and(|bytes| bytes != "0");
        if is_limited && policy != "noeviction" {
            self.add(
                (FindingKind::Eviction, Severity::Unsafe),
                format!("keys are evicted when memory is full (maxmemory-policy {policy})"),
                "two owners can hold an evicted lock, and an evicted completion runs again, both \
                 without any error",
                "set maxmemory-policy noeviction",
            );
        }
        let bytes = |name| info.field(name).and_then(|bytes| bytes.parse::<u64>().ok());
        if let (Some(used), Some(max)) = (bytes("used_memory"), bytes("maxmemory"))
            && max > 0
            && used / 9 >= max / 10
        {
            self.add(
                (FindingKind::Memory, Severity::Notice),
                format!("{used} of {max} bytes of memory are used (maxmemory)"),
                "once memory is full, no lock is granted, and all records wait",
                "raise maxmemory, or shorten the retention of entries",
            );
        }
    }

    fn check_buckets(&mut self, report: &ServerReport, config: &RedisConfig) {
        let configured = config.buckets().expect("checked").count();
        for (namespace, count) in &report.bucket_counts {
            if *count != configured {
                self.add(
                    (FindingKind::Buckets, Severity::Unsafe),
                    format!(
                        "the namespace {namespace} has {count} buckets, but the store is configured \
                         for {configured}"
                    ),
                    "the store would not find existing entries, so it refuses every command",
                    "set the namespace's number of buckets (`with_buckets`), or use another namespace",
                );
            }
        }
    }

    fn check_persistence(&mut self, info: &Info, report: &ServerReport, config: &RedisConfig) {
        match info.field("aof_enabled") {
            Some("0") => {
                let seen = match report.setting("save") {
                    Some("") => "nothing is kept on disk (appendonly no, save \"\")".into(),
                    Some(save) => {
                        format!("only snapshots are kept (appendonly no, save {save})")
                    }
                    None => "there is no append-only file (appendonly no)".into(),
                };
                // The server refuses WAITAOF without an append-only file.
                let severity =
                    if waits_for_disk(config) { Severity::Unsafe } else { Severity::DataLoss };
                self.add(
                    (FindingKind::Persistence, severity),
                    seen,
                    "a crash or restart loses all completions since the last snapshot, and their \
                     records run again when redelivered",
                    "set appendonly yes",
                );
            }
            Some(_) => self.check_fsync(report),
            None => {}
        }
    }

    fn check_fsync(&mut self, report: &ServerReport) {
        const ALWAYS: &str = "set appendfsync always";
        let skips_fsync_on_rewrite = report.setting("no-appendfsync-on-rewrite") == Some("yes");
        let (severity, setting, risk, remedy) = match report.setting("appendfsync") {
            Some("no") => (
                Severity::DataLoss,
                "appendfsync no",
                "a crash of the machine loses the completions that the kernel had not written: \
                 those of half a minute or more",
                ALWAYS,
            ),
            Some("always" | "everysec") if skips_fsync_on_rewrite => (
                Severity::DataLoss,
                "no-appendfsync-on-rewrite yes",
                "a crash of the machine during a rewrite of the append-only file loses the \
                 completions made meanwhile",
                "set no-appendfsync-on-rewrite no",
            ),
            Some("everysec") => (
                Severity::Notice,
                "appendfsync everysec",
                "a crash of the machine loses the completions of the last second or two",
                ALWAYS,
            ),
            _ => return,
        };
        self.add((FindingKind::Fsync, severity), setting, risk, remedy);
    }

    fn check_replication(&mut self, info: &Info, report: &ServerReport, config: &RedisConfig) {
        if info.field("role") == Some("slave") {
            let primary = (info.field("master_host"), info.field("master_port"));
            let (host, port) = (primary.0.unwrap_or("?"), primary.1.unwrap_or("?"));
            return self.add(
                (FindingKind::Replica, Severity::Unsafe),
                format!("the server is a replica of {host}:{port}"),
                "it accepts no writes, so no lock is granted; if it did, they would be lost",
                "connect to the primary",
            );
        }
        let replicas = info.field("connected_slaves").and_then(|n| n.parse::<u32>().ok());
        let required = config.durability.map_or(0, |durability| durability.replicas);
        if let Some(replicas) = replicas.filter(|replicas| *replicas < required) {
            self.add(
                (FindingKind::Replicas, Severity::DataLoss),
                format!("{replicas} replicas are connected, but {required} are waited for"),
                "no lock is granted, and a failover loses what is completed meanwhile",
                "add replicas (replicaof), or wait for fewer",
            );
        } else if replicas == Some(0) {
            self.add(
                (FindingKind::Replicas, Severity::DataLoss),
                "the server has no replica",
                "the loss of its machine loses all locks and completions",
                "add a replica (replicaof)",
            );
        } else if replicas.is_some() && report.setting("min-replicas-to-write") == Some("0") {
            self.add(
                (FindingKind::MinReplicas, Severity::DataLoss),
                "the server accepts writes that no replica receives (min-replicas-to-write 0)",
                "when cut off from its replicas it still acknowledges completions, all of which a \
                 failover loses",
                "set min-replicas-to-write 1",
            );
        }
    }

    fn check_permissions(&mut self, report: &ServerReport, config: &RedisConfig) {
        let denied = &report.denied;
        let what = [
            (&denied.commands, "the user may not send"),
            (&denied.keys, "the user may not read and write the keys"),
        ];
        for (names, what) in what.into_iter().filter(|(names, _)| !names.is_empty()) {
            self.add(
                (FindingKind::Permission, Severity::Unsafe),
                format!("{what} {}", names.join(", ")),
                "the store's commands fail, so no lock is granted",
                "grant the permissions listed in the docs of `RedisConfig` (ACL SETUSER)",
            );
        }
        if denied.has_denied_namespaces && config.namespaces.is_empty() {
            self.add(
                (FindingKind::KeyAccess, Severity::DataLoss),
                "the user may not use the keys of every namespace (campanile:* and {*)",
                "a namespace without permission fails at its first record",
                "name the namespaces with `with_namespaces`, so that their keys are checked",
            );
        }
    }

    fn check_clock(&mut self, report: &ServerReport) {
        if let Some(skew) = report.clock_skew.filter(|skew| *skew > MAX_CLOCK_SKEW) {
            self.add(
                (FindingKind::Clock, Severity::DataLoss),
                format!("server and client clocks are {:.1} s apart", skew.as_secs_f64()),
                "after a failover to a server with the right time, locks and backoffs end too \
                 early or too late, and a fencing token may be lower than an earlier one",
                "synchronize both clocks (NTP)",
            );
        }
    }

    fn check_unanswered(&mut self, report: &ServerReport) {
        let unanswered = report.unanswered();
        if !unanswered.is_empty() {
            self.add(
                (FindingKind::NotInspected, Severity::Notice),
                format!("the server does not answer {}", unanswered.join(" and ")),
                "its eviction, persistence and replication were not checked, or not completely",
                "allow the user +info and +config|get, or check the settings yourself",
            );
        }
    }

    fn add(
        &mut self,
        kind: (FindingKind, Severity),
        seen: impl Into<Cow<'static, str>>,
        risk: &'static str,
        remedy: &'static str,
    ) {
        self.found.push(Finding::new(kind, self.address, seen, risk, remedy));
    }
}
