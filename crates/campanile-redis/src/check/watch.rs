//! Watches the settings of the servers for as long as the store is used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::telemetry::{Counter, instruments};
use campanile_idempotency::StoreError;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::time::Instant;

use super::report::ServerReport;
use super::{Finding, FindingKind, Safety, Severity, evaluate, fatal_findings};
use crate::connection::ConnectionHandle;
use crate::failure::Failure;
use crate::script::Verb;
use crate::{ConnectError, RedisConfig};

/// The interval between two looks at a server while calls are made. A look takes the server some
/// 0.1 ms, and one call a round trip.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The settings of each server as they were last seen, and whether they are safe.
///
/// A look is one pipeline of `INFO` and `CONFIG GET`: over each new connection, because it may lead
/// to another server, and every 5 s, because a change of settings breaks no connection.
pub(crate) struct SettingsWatch {
    config: RedisConfig,
    servers: Mutex<Servers>,
    findings: Counter,
}

#[derive(Default)]
struct Servers {
    by_address: BTreeMap<Box<str>, Server>,
    /// The server that was seen last, with which one that is seen for the first time is compared: a
    /// promoted replica takes the place of its primary.
    latest: Server,
}

#[derive(Clone, Default)]
struct Server {
    looked_at: Option<Instant>,
    settings: BTreeMap<&'static str, String>,
    /// The findings that have been reported and that no change of settings has ended.
    reported: BTreeSet<(Severity, &'static str)>,
    /// Why the server is refused, if it is.
    refusal: Option<StoreError>,
}

/// A setting that has changed, with its previous and its present value.
struct Change {
    was: String,
    now: String,
}

impl SettingsWatch {
    pub(crate) fn new(config: RedisConfig) -> Arc<Self> {
        let findings = Counter::new(&instruments::REDIS_UNSAFE_SETTINGS, &[]);
        Arc::new(Self { config, servers: Mutex::default(), findings })
    }

    /// Records what was accepted when the store connected.
    pub(super) fn accept(&self, address: &str, report: &ServerReport, findings: &[Finding]) {
        self.record(address, report, findings);
    }

    /// Looks at the server at the end of a new connection.
    pub(crate) async fn look(&self, handle: &ConnectionHandle) -> RedisResult<()> {
        if self.config.safety == Safety::Off {
            return Ok(());
        }
        let address = handle.address();
        let report = match ServerReport::query_settings(&mut handle.connection.clone()).await {
            Ok(report) => report,
            Err(error) if error.is_io_error() => return Err(error),
            // The server is busy or loading.
            Err(_) => return Ok(()),
        };
        let findings = evaluate::findings(&report, address, &self.config);
        let (reported, change) = self.record(address, &report, &findings);
        for finding in reported {
            self.report(finding, &change);
        }
        match findings.iter().find(|finding| finding.kind() == FindingKind::Replica) {
            // The connection is replaced, as after a write that the replica has refused. A node of
            // a cluster redirects to its master.
            Some(finding) if self.config.safety == Safety::Refuse && !self.config.is_cluster() => {
                let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
                Err(RedisError::from((kind, "not a primary", finding.to_string())))
            }
            _ => Ok(()),
        }
    }

    /// Looks at the server if the last look is 5 s old. Fails if the server must not grant a lock or
    /// record a step. What ends an attempt is still sent: without it the record would certainly run
    /// again.
    pub(crate) async fn check(&self, handle: &ConnectionHandle, verb: Verb) -> Result<(), Failure> {
        if self.config.safety == Safety::Off {
            return Ok(());
        }
        if self.claim_look(handle.address()) {
            self.look(handle).await.map_err(Failure::Connection)?;
        }
        if !matches!(verb, Verb::Acquire | Verb::RecordStep) {
            return Ok(());
        }
        let servers = self.servers();
        let server = servers.by_address.get(handle.address());
        match server.and_then(|server| server.refusal.clone()) {
            Some(refusal) => Err(Failure::Final(refusal)),
            None => Ok(()),
        }
    }

    /// Returns whether a look is due, for one caller.
    fn claim_look(&self, address: &str) -> bool {
        let mut servers = self.servers();
        let Servers { by_address, latest } = &mut *servers;
        if !by_address.contains_key(address) {
            by_address.insert(address.into(), Server { looked_at: None, ..latest.clone() });
        }
        let server = by_address.get_mut(address).expect("just inserted");
        let is_due = server.looked_at.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL);
        if is_due {
            server.looked_at = Some(Instant::now());
        }
        is_due
    }

    /// Records a look. Returns the findings that are new, and what has changed.
    fn record<'a>(
        &self,
        address: &str,
        report: &ServerReport,
        findings: &'a [Finding],
    ) -> (Vec<&'a Finding>, Change) {
        let mut servers = self.servers();
        let known = servers.by_address.get(address).unwrap_or(&servers.latest);
        let mut server = Server { looked_at: Some(Instant::now()), ..known.clone() };

        let (mut was, mut now) = (Vec::new(), Vec::new());
        // A value that the server does not report any more may not have changed.
        for (name, value) in report.watched_settings() {
            let previous = server.settings.insert(name, value.into());
            if previous.as_deref() != Some(value) {
                was.push(format!("{name} {}", previous.as_deref().unwrap_or("unknown")));
                now.push(format!("{name} {value}"));
            }
        }
        let is_new = |finding: &&Finding| !server.reported.contains(&finding.id());
        let new = findings.iter().filter(is_new).collect();
        if !now.is_empty() {
            server.reported.clear();
        }
        server.reported.extend(findings.iter().map(Finding::id));
        if report.info.is_some() {
            let was_refused = server.refusal.is_some();
            server.refusal = self.refusal(address, findings);
            if was_refused && server.refusal.is_none() {
                tracing::info!(address, "Redis is safe to use again; granting locks");
            }
        }
        servers.latest = server.clone();
        servers.by_address.insert(address.into(), server);
        (new, Change { was: was.join(", "), now: now.join(", ") })
    }

    /// The error of the commands that a server with these findings is not sent.
    fn refusal(&self, address: &str, findings: &[Finding]) -> Option<StoreError> {
        let fatal = fatal_findings(&self.config, findings);
        // The connection to a replica is replaced.
        let findings: Box<[_]> =
            fatal.filter(|finding| finding.kind() != FindingKind::Replica).cloned().collect();
        let is_refused = !findings.is_empty();
        let error = ConnectError::Unsafe { address: address.into(), findings };
        is_refused.then(|| StoreError::not_sent(error))
    }

    fn report(&self, finding: &Finding, Change { was, now }: &Change) {
        let (address, kind) = (finding.address(), finding.kind());
        // Both change without a setting, and metrics of the server show them.
        if matches!(kind, FindingKind::Replicas | FindingKind::Memory) {
            return;
        }
        match finding.severity() {
            Severity::Unsafe if self.config.safety == Safety::Refuse => tracing::error!(
                address,
                ?kind,
                was,
                now,
                "Redis has become unsafe, so no lock is granted until it is corrected: {finding}"
            ),
            Severity::Unsafe => {
                tracing::error!(address, ?kind, was, now, "Redis has become unsafe: {finding}");
            }
            Severity::DataLoss => {
                tracing::warn!(address, ?kind, was, now, "Redis has become less safe: {finding}");
            }
            Severity::Notice => {
                tracing::info!(address, ?kind, was, now, "Redis has changed: {finding}");
                return;
            }
        }
        self.findings.increment(1);
    }

    fn servers(&self) -> MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
