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

/// The interval between two looks at the client certificate.
#[cfg(feature = "tls")]
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(60 * 60);

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
    #[cfg(feature = "tls")]
    certificate_checked_at: Option<Instant>,
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

impl SettingsWatch {
    pub(crate) fn new(config: RedisConfig) -> Arc<Self> {
        let findings = Counter::new(&instruments::REDIS_UNSAFE_SETTINGS, &[]);
        Arc::new(Self { config, servers: Mutex::default(), findings })
    }

    /// Looks at the server at the end of a new connection.
    pub(crate) async fn look(&self, handle: &ConnectionHandle) -> RedisResult<()> {
        #[cfg(feature = "tls")]
        self.check_certificate();
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
        let (new, was, now) = self.record(address, &report, &findings);
        new.into_iter().for_each(|finding| self.report(finding, &was, &now));
        match findings.iter().find(|finding| finding.kind() == FindingKind::Replica) {
            // The connection is replaced, as after a write that the replica has refused. A node of
            // a cluster redirects to its master.
            Some(finding) if self.config.safety == Safety::Refuse && !self.config.is_cluster() => {
                let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
                Err(RedisError::from((kind, "a read only replica", finding.to_string())))
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

    /// Reports each hour that the client certificate expires soon.
    #[cfg(feature = "tls")]
    fn check_certificate(&self) {
        let checked_at = self.servers().certificate_checked_at;
        if checked_at.is_none_or(|at| at.elapsed() >= CERTIFICATE_INTERVAL) {
            self.servers().certificate_checked_at = Some(Instant::now());
            self.config.secrets.certificates.report_expiry(super::report::client_time());
        }
    }

    /// Returns whether a look is due, for one caller.
    fn claim_look(&self, address: &str) -> bool {
        let mut servers = self.servers();
        let Servers { by_address, latest, .. } = &mut *servers;
        let server = match by_address.get_mut(address) {
            Some(server) => server,
            None => by_address.entry(address.into()).or_insert(latest.clone()),
        };
        let is_due = server.looked_at.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL);
        if is_due {
            server.looked_at = Some(Instant::now());
        }
        is_due
    }

    /// Records a look. Returns the findings that are new, and the settings that have changed, with the
    /// previous and the present values.
    pub(super) fn record<'a>(
        &self,
        address: &str,
        report: &ServerReport,
        findings: &'a [Finding],
    ) -> (Vec<&'a Finding>, String, String) {
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
            // The connection to a replica is replaced.
            let findings: Box<[_]> = fatal_findings(&self.config, findings)
                .filter(|finding| finding.kind() != FindingKind::Replica)
                .cloned()
                .collect();
            let (is_safe, was_safe) = (findings.is_empty(), server.refusal.is_none());
            let refusal = ConnectError::Unsafe { address: address.into(), findings };
            server.refusal = (!is_safe).then(|| StoreError::not_sent(refusal));
            if is_safe && !was_safe {
                tracing::info!(address, "Redis is safe to use again; granting locks");
            }
        }
        servers.latest = Server { looked_at: None, refusal: None, ..server.clone() };
        servers.by_address.insert(address.into(), server);
        (new, was.join(", "), now.join(", "))
    }

    fn report(&self, finding: &Finding, was: &str, now: &str) {
        let (address, kind) = (finding.address(), finding.kind());
        match finding.severity() {
            // Both change without a setting, and metrics of the server show them.
            _ if matches!(kind, FindingKind::Replicas | FindingKind::Memory) => return,
            Severity::Unsafe => tracing::error!(
                address,
                ?kind,
                was,
                now,
                refused = self.config.safety == Safety::Refuse,
                "Redis has become unsafe; if it is refused, no lock is granted until that is \
                 corrected: {finding}"
            ),
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
