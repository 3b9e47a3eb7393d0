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

/// The interval between two looks at a server while calls are made, as between two queries to
/// sentinels. A look takes the server some 30 µs, and one call a round trip.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between two looks at the client certificate.
#[cfg(feature = "tls")]
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The settings of each server as they were last seen, and whether they are safe.
///
/// A look is one pipeline of `INFO` and `CONFIG GET`: over each new connection, because it may lead
/// to another server, and every second, because a change of settings breaks no connection.
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
    latest: Observed,
}

struct Server {
    looked_at: Instant,
    observed: Observed,
    /// Why the server is refused, if it is.
    refusal: Option<StoreError>,
}

#[derive(Clone, Default)]
struct Observed {
    settings: BTreeMap<&'static str, String>,
    /// The findings that have been reported and that no change of settings has ended.
    reported: BTreeSet<(Severity, &'static str)>,
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

    /// Looks at the server if the last look is a second old. Fails if the server must not grant a lock or
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
            let now = std::time::SystemTime::UNIX_EPOCH + super::report::client_time();
            self.config.secrets.certificates.report_expiry(now);
        }
    }

    /// Returns whether a look is due, for one caller.
    fn claim_look(&self, address: &str) -> bool {
        let mut servers = self.servers();
        // The look over a new connection failed if the server is unknown.
        servers.by_address.get_mut(address).is_none_or(|server| {
            let is_due = server.looked_at.elapsed() >= LOOK_INTERVAL;
            if is_due {
                server.looked_at = Instant::now();
            }
            is_due
        })
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
        let previous = servers.by_address.remove(address);
        let (Observed { mut settings, mut reported }, mut refusal) = match previous {
            Some(server) => (server.observed, server.refusal),
            None => (servers.latest.clone(), None),
        };
        let (mut was, mut now) = (Vec::new(), Vec::new());
        // A value that the server does not report any more may not have changed.
        for (name, value) in report.watched_settings() {
            let previous = settings.insert(name, value.into());
            if previous.as_deref() != Some(value) {
                was.push(format!("{name} {}", previous.as_deref().unwrap_or("unknown")));
                now.push(format!("{name} {value}"));
            }
        }
        let new = findings.iter().filter(|finding| !reported.contains(&finding.id())).collect();
        if !now.is_empty() {
            reported.clear();
        }
        reported.extend(findings.iter().map(Finding::id));
        if report.info.is_some() {
            // The connection to a replica is replaced.
            let fatal = fatal_findings(&self.config, findings)
                .filter(|finding| finding.kind() != FindingKind::Replica);
            let (fatal, was_refused) = (fatal.cloned().collect::<Box<[_]>>(), refusal.is_some());
            refusal = (!fatal.is_empty()).then(|| {
                let (address, findings) = (address.into(), fatal);
                StoreError::not_sent(ConnectError::Unsafe { address, findings })
            });
            if was_refused && refusal.is_none() {
                tracing::info!(address, "Redis is safe to use again; granting locks");
            }
        }
        let observed = Observed { settings, reported };
        servers.latest = observed.clone();
        let server = Server { looked_at: Instant::now(), observed, refusal };
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
